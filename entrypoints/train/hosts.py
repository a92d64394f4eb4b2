"""Addresses of the job's hosts. Names may not resolve yet when a container starts (contract 1.3)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence

from hotfire.entrypoints.train.talk import say
from hotfire.runtime.errors import DataError, ValidationError

DEADLINE = 900.0
"""Seconds: how long clients in the wild, the toolkit among them, keep trying."""

_TELL_EVERY = 10.0


def addresses(
    hosts: Sequence[str],
    environment: Mapping[str, str],
    pause: Callable[[float], None] = time.sleep,
    deadline: float = DEADLINE,
) -> dict[str, str]:
    """The IPv4 address of each host: from HOTFIRE_HOSTS, else from the resolver, waiting up to ``deadline`` seconds.

    Raises:
        ValidationError: HOTFIRE_HOSTS is not the JSON object expected, or lacks a host.
        DataError: a host's name does not resolve in time; names the host.
    """
    if given := environment.get("HOTFIRE_HOSTS"):
        return _given(hosts, given)
    if len(hosts) == 1:
        # Nobody else has to find it, and by hand its name need not resolve.
        return {hosts[0]: "127.0.0.1"}
    if environment.get("SM_STUDIO_LOCAL_MODE", "").lower() == "true":
        return {host: _resolve(host) or host for host in hosts}
    end = time.monotonic() + deadline
    return {host: _wait(host, end, deadline, pause) for host in hosts}


def _given(hosts: Sequence[str], text: str) -> dict[str, str]:
    try:
        known = json.loads(text)
        return {host: str(known[host]) for host in hosts}
    except KeyError as error:
        raise ValidationError(f"HOTFIRE_HOSTS has no address for host {error}.") from error
    except (ValueError, TypeError) as error:
        raise ValidationError("HOTFIRE_HOSTS is not a JSON object of addresses.") from error


def _wait(host: str, end: float, deadline: float, pause: Callable[[float], None]) -> str:
    began = told = time.monotonic()
    wait = 0.1
    while (address := _resolve(host)) is None:
        now = time.monotonic()
        if now >= end:
            raise DataError(
                f"Host {host} of this job cannot be found: its name did not resolve for {deadline:.0f} s.",
                do="Check that the host started, and that all hosts share one network.",
            )
        if now - told >= _TELL_EVERY:
            told = now
            say(f"waiting for host {host} to resolve, {now - began:.0f} s so far")
        pause(min(wait, end - now))
        wait = min(wait * 1.5, 5.0)
    return address


def _resolve(host: str) -> str | None:
    import socket

    try:
        return socket.gethostbyname(host)
    except OSError:
        return None
