"""How things of the engine are known to be ours, and whether the session that made them still lives."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from hotfire.runtime.backend import Attempt

SESSION = "hotfire.session"
JOB = "hotfire.job"
ATTEMPT = "hotfire.attempt"
HOST = "hotfire.host"
DIRECTORY = "hotfire.directory"
"""Of the attempt's hosts, on this machine."""
ORIGIN = "hotfire.origin"
"""Boot and network namespace in which the session's name can be looked for."""


def labels_of(attempt: Attempt, session: str) -> dict[str, str]:
    """Never a secret: anybody who may use the engine reads them."""
    directory = next(iter(attempt.dirs.values())).root.parent
    return {
        SESSION: session,
        JOB: attempt.job,
        ATTEMPT: str(attempt.number),
        DIRECTORY: str(directory.absolute()),
        ORIGIN: origin(),
    }


def origin() -> str:
    """Tells apart the boots of a machine and the containers on it that share its engine."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{os.readlink('/proc/self/ns/net')}"  # noqa: PTH115


class Alive:
    """While the ``with`` lasts, however it ends, the session lives for every process of this machine.

    An abstract socket's name is given back by the kernel with the last descriptor: no file, no process id.
    """

    def __init__(self) -> None:
        self.session = uuid.uuid4().hex
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> Self:
        self._socket.bind(_address(self.session))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()


def abandoned(labels: Mapping[str, str], here: str) -> bool | None:
    """Whether the session that made something has ended; None where that cannot be known from ``here``, an origin."""
    boot, _, namespace = labels.get(ORIGIN, "").partition("/")
    own_boot, _, own_namespace = here.partition("/")
    if boot != own_boot:
        return True  # the machine was started again since
    if namespace != own_namespace:
        return None
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.bind(_address(labels.get(SESSION, "")))
        except OSError:
            return False
    return True


def _address(session: str) -> str:
    return f"\0hotfire/session/{session}"
