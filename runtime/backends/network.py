"""Addresses of a job's hosts: loopback addresses of this machine, or a network of the job's own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotfire.runtime.backends import syscalls
from hotfire.runtime.backends.spawn import Launcher
from hotfire.runtime.backends.steps import SetUpError
from hotfire.runtime.errors import ValidationError

MOST_HOSTS = 250
_BLOCKS = 64 * 254
"""/24 blocks from 127.64.0.0 to 127.127.253.0: clear of what resolvers and test suites use."""


@dataclass(frozen=True, kw_only=True)
class JobNetwork:
    """The network of one session. ``join`` are the namespaces (descriptor, kind) that a host's launcher enters."""

    addresses: Mapping[str, str]
    interface: str
    flags: int = 0
    join: tuple[tuple[int, int], ...] = ()
    configuration: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of each host: what :mod:`hotfire.runtime.backends.launcher` calls ``net``."""
    resolver: str | None = None
    """The nameserver that hosts are to use instead of this machine's, which they cannot reach."""


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _refuse_many(hosts: Sequence[str]) -> None:
    if len(hosts) > MOST_HOSTS:
        raise ValidationError(
            f"{len(hosts)} hosts on one machine; the process backend has addresses for {MOST_HOSTS}.",
            do="Ask for fewer hosts.",
        )


@contextlib.contextmanager
def host_network(seed: str, hosts: Sequence[str]) -> Iterator[JobNetwork]:
    """One loopback address for each host, from a block that no other job of this machine has meanwhile.

    A block is reserved by the name of an abstract Unix socket: seen by every user of the same network, and given back
    by the kernel when this process ends, however it ends.
    """
    _refuse_many(hosts)
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as lock:
        start = _number(seed)
        for offset in range(_BLOCKS):
            second, third = divmod((start + offset) % _BLOCKS, 254)
            block = f"127.{64 + second}.{third}"
            try:
                lock.bind(f"\0hotfire/{block}")
            except OSError:
                continue
            addresses = {host: f"{block}.{n}" for n, host in enumerate(hosts, 1)}
            yield JobNetwork(addresses=addresses, interface="lo")
            return
    raise ValidationError(
        "every block of loopback addresses is in use by another job.", do="Wait for one to end."
    )


@contextlib.contextmanager
def private_network(
    seed: str, hosts: Sequence[str], *, own_users: bool, outside: str | None
) -> Iterator[JobNetwork]:
    """A network namespace for each host, their eth0 on one bridge.

    ``own_users``: in a user namespace of the job. ``outside``: the program that carries connections out of a host.

    Raises:
        ValidationError: this machine does not allow it; the message says which step.
    """
    _refuse_many(hosts)
    flags = syscalls.CLONE_NEWNET | (syscalls.CLONE_NEWUSER if own_users else 0)
    with contextlib.ExitStack() as undo:
        try:
            join = _open_network(flags, undo)
        except (SetUpError, EOFError, OSError) as error:
            reason = os.strerror(error.errno or 0) if not isinstance(error, EOFError) else "killed"
            raise ValidationError(
                f"a private network is refused on this machine: {error}: {reason}.",
                do="Use --network host, or run `hotfire setup` to see what would allow it.",
            ) from error
        prefix = _free_prefix(seed)
        addresses = {host: f"{prefix}.{n}" for n, host in enumerate(hosts, 2)}
        resolver = _resolver(outside) if outside else None
        configuration = {
            host: {
                "address": addresses[host],
                "prefix": 24,
                "outside": os.fsencode(outside) if outside else None,
                "resolver": resolver,
            }
            for host in hosts
        }
        yield JobNetwork(
            addresses=addresses,
            interface="eth0",
            flags=syscalls.CLONE_NEWNET,
            join=join,
            configuration=configuration,
            resolver=resolver,
        )


def _open_network(flags: int, undo: contextlib.ExitStack) -> tuple[tuple[int, int], ...]:
    """Descriptors keep the namespaces alive; no process needs to stay in them."""
    kinds = (("user", syscalls.CLONE_NEWUSER), ("net", syscalls.CLONE_NEWNET))
    join = []
    with Launcher() as launcher:
        answer = launcher.order("network", {"flags": flags}).receive(10)
        if answer is None:
            launcher.process.kill()
            raise EOFError
        for name, kind in kinds:
            if flags & kind:
                fd = os.open(f"/proc/{answer['pid']}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
                undo.callback(os.close, fd)
                join.append((fd, kind))
    return tuple(join)


def _resolver(outside: str) -> str | None:
    """The address at which ``outside`` answers for this machine's resolver, where that is on the loopback only."""
    try:
        text = Path("/etc/resolv.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    lines = [line.split() for line in text.splitlines()]
    servers = [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]
    if not servers or not all(s.startswith("127.") or s == "::1" for s in servers):
        return None
    return "10.0.2.3" if Path(outside).name == "slirp4netns" else "169.254.1.1"


def _free_prefix(seed: str) -> str:
    """The first three numbers of a 10.x network to which this machine has no route of its own."""
    routed = _routed()
    start = _number(seed)
    for offset in range(1 << 16):
        second, third = divmod((start + offset) % (1 << 16), 256)
        address = 10 << 24 | second << 16 | third << 8
        if not any(
            address & mask == network or network & 0xFFFFFF00 == address for network, mask in routed
        ):
            return f"10.{second}.{third}"
    return (
        "10.77.0"  # everything is routed somewhere: inside the job's own network that does no harm
    )


def _routed() -> list[tuple[int, int]]:
    """Networks (address, mask) that this machine reaches in a particular way; the default route is none."""
    try:
        lines = Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []
    fields = [line.split() for line in lines]
    found = [(_swapped(f[1]), _swapped(f[7])) for f in fields if len(f) > 7]
    return [(network, mask) for network, mask in found if mask]


def _swapped(text: str) -> int:
    return int.from_bytes(bytes.fromhex(text)[::-1], "big")
