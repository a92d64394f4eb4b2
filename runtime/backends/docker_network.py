"""Addresses of a job's containers: an unused small network of the engine's, chosen by the job's name."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotfire.containers.engine import Engine
from hotfire.runtime.errors import PlatformError, ValidationError

_POOL = ipaddress.IPv4Network("10.192.0.0/10")
"""Engines take theirs from 172.16/12 and 192.168/16, clouds mostly from the start of 10/8."""
_SMALLEST = 27
"""The engine's own choice is a /16 or /20 for each network: its pools were exhausted at the 30th."""
_TRIES = 64


@dataclass(frozen=True, kw_only=True)
class JobNetwork:
    id: str
    name: str
    addresses: Mapping[str, str]


def create(
    engine: Engine,
    name: str,
    hosts: Sequence[str],
    *,
    seed: str,
    labels: Mapping[str, str],
    internal: bool,
) -> JobNetwork:
    """A new network with an address for every host.

    Raises:
        ValidationError: more hosts than a network of ours holds.
        PlatformError: no free addresses were found.
    """
    taken = [ipaddress.ip_network(text, strict=False) for text in engine.subnets()]
    taken += routed(Path("/proc/net/route"))
    for subnet in candidates(prefix_for(len(hosts)), seed, taken):
        gateway, *free = (str(address) for address in subnet.hosts())
        made = engine.create_network(name, str(subnet), gateway, labels=labels, internal=internal)
        if made is not None:  # else another job was quicker
            return JobNetwork(id=made, name=name, addresses=dict(zip(hosts, free, strict=False)))
    raise PlatformError(
        "no unused addresses were found for the job's network.",
        do="docker network ls shows what is there; hotfire prune and docker network prune free some.",
    )


def prefix_for(hosts: int) -> int:
    """The length of the smallest prefix, at least a /27's room, with an address for each host and the gateway.

    >>> prefix_for(1), prefix_for(29), prefix_for(30)
    (27, 27, 26)
    """
    for prefix in range(_SMALLEST, 19, -1):
        if hosts <= 2 ** (32 - prefix) - 3:
            return prefix
    raise ValidationError(f"{hosts} hosts do not fit one machine.", do="Ask for fewer hosts.")


def candidates(
    prefix: int,
    seed: str,
    taken: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network],
) -> Iterator[ipaddress.IPv4Network]:
    """Networks of the pool that overlap none of ``taken``, from a place that the seed decides."""
    size = 2 ** (32 - prefix)
    count = _POOL.num_addresses // size
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8])
    tried = 0
    for offset in range(count):
        first = int(_POOL.network_address) + (start + offset) % count * size
        subnet = ipaddress.IPv4Network((first, prefix))
        if not any(one.version == 4 and subnet.overlaps(one) for one in taken):
            yield subnet
            tried += 1
            if tried == _TRIES:
                return


def routed(table: Path) -> list[ipaddress.IPv4Network]:
    """Networks that this machine reaches in a particular way (a VPN, its own LAN); the default route is none."""
    try:
        rows = [line.split() for line in table.read_text(encoding="ascii").splitlines()[1:]]
    except OSError:
        return []
    found = []
    for row in rows:
        network, mask = (int.from_bytes(bytes.fromhex(row[i])[::-1], "big") for i in (1, 7))
        if mask:
            found.append(ipaddress.IPv4Network((network, mask.bit_count())))
    return found
