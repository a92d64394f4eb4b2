"""Epochs of a Pipe channel, as a script reads them (contract 3.7)."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hotfire.runtime.layout import ML_ROOT

_POLL = 0.01
_BUFFER = 1 << 20


class SharedFifoError(RuntimeError):
    """Two processes read the same FIFO."""


class PipeChannel:
    """The FIFOs of one channel. Each may be read by a single process only.

    Reading begins with the oldest FIFO that is there, so that a process which starts in the middle of a job goes on
    with the next epoch.

    Args:
        base: what stands for /opt/ml; default SAGEMAKER_BASE_DIR, else /opt/ml.
        timeout: seconds to wait for a FIFO to appear.
    """

    def __init__(self, name: str, *, base: Path | None = None, timeout: float = 60.0) -> None:
        root = base or Path(os.environ.get("SAGEMAKER_BASE_DIR") or ML_ROOT)
        self._directory = root / "input" / "data"
        self._name = name
        self._timeout = timeout
        self._next: int | None = None

    @property
    def place(self) -> str:
        """The channel on this host, for the processes of this host alone: hosts may share a machine."""
        found = self._directory.stat()
        return f"{self._name}@{found.st_dev:x}.{found.st_ino:x}"

    @contextmanager
    def epoch(self) -> Iterator[BinaryIO]:
        """The next epoch's stream; leaving the block early is fine, and moves on to the following one.

        Raises:
            TimeoutError: no FIFO appeared.
            SharedFifoError: another process is reading it.
        """
        number = self._wait()
        self._next = number + 1
        path = self._directory / f"{self._name}_{number}"
        with path.open("rb", buffering=_BUFFER) as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SharedFifoError(
                    f"another process reads {path}, and would get a part of its bytes by chance: channel {self._name} "
                    "has one FIFO a host, for one process. hotfire.runtime.data.torch.PipeDataset shares its records "
                    "out over ranks and workers; or give each process a channel"
                ) from None
            yield stream

    def epochs(self, count: int | None = None) -> Iterator[BinaryIO]:
        """One stream per epoch, ``count`` of them or without an end; each is closed before the next."""
        for _ in itertools.count() if count is None else range(count):
            with self.epoch() as stream:
                yield stream

    def _wait(self) -> int:
        end = time.monotonic() + self._timeout
        while (number := self._there()) is None:
            if time.monotonic() > end:
                at = self._directory / f"{self._name}_{self._next or 0}"
                raise TimeoutError(
                    f"no FIFO {at} within {self._timeout:g} s: is {self._name} a channel in Pipe mode?"
                )
            time.sleep(_POLL)
        return number

    def _there(self) -> int | None:
        if self._next is not None:
            path = self._directory / f"{self._name}_{self._next}"
            return self._next if path.exists() else None
        try:
            names = os.listdir(self._directory)  # noqa: PTH208
        except FileNotFoundError:
            return None
        found = [re.fullmatch(re.escape(self._name) + "_([0-9]+)", name) for name in names]
        return min((int(match[1]) for match in found if match), default=None)
