"""What jobs of the endpoint may have at once: shares that are locks, and tickets for those who wait, in order.

A lock is let go when its last holder ends, however it ends; nothing has to be cleaned up after a crash. Shares are
handed from the server to the process that supervises the job.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hotfire.runtime.store import JobLock


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """``jobs`` of the endpoint at once; beyond that they wait in order, or are refused."""

    jobs: int
    memory_gib: float | None = None
    """Of all instances of the jobs together; None: not counted."""
    wait: bool = True

    def holds(self, memory_gib: float) -> bool:
        """Whether a job of that size fits when there is no other."""
        return self.memory_gib is None or memory_gib <= self.memory_gib

    def __str__(self) -> str:
        memory = f", {self.memory_gib:g} GiB of memory" if self.memory_gib is not None else ""
        return f"{self.jobs} jobs{memory}"


@dataclass(frozen=True)
class Ticket:
    """A place in the queue, as long as the lock is held. ``memory_gib``: what the job needs."""

    path: Path
    lock: JobLock
    memory_gib: float = 0.0

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        self.lock.close()


@dataclass(frozen=True)
class Admission:
    """Shares and queue below ``root``. A share is a file that holds the GiB of its job."""

    root: Path
    capacity: Capacity

    @property
    def _queue(self) -> Path:
        return self.root / "queue"

    @property
    def _shares(self) -> Path:
        return self.root / "shares"

    def enter(self, memory_gib: float = 0.0) -> JobLock | None:
        """A share, at once; None when there is no room or somebody waits already."""
        with self._alone():
            return None if self._first_waiting() else self._free(memory_gib)

    def queue_up(self, memory_gib: float = 0.0) -> Ticket:
        """The last place of the queue."""
        with self._alone():
            path, lock = _fresh(self._queue)
            return Ticket(path, lock, memory_gib)

    def turn(self, ticket: Ticket) -> JobLock | None:
        """The share of the first in the queue, who has left it then; None for the others, and while there is no room."""
        with self._alone():
            if self._first_waiting() != ticket.path:
                return None
            share = self._free(ticket.memory_gib)
            if share is not None:
                ticket.close()
            return share

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        for path in (self._queue, self._shares):
            path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _first_waiting(self) -> Path | None:
        return next(_held(self._queue), None)

    def _free(self, memory_gib: float) -> JobLock | None:
        taken = [float(path.read_text(encoding="ascii") or 0) for path in _held(self._shares)]
        if len(taken) >= self.capacity.jobs or not self.capacity.holds(sum(taken) + memory_gib):
            return None
        path, lock = _fresh(self._shares)
        path.write_text(repr(memory_gib), encoding="ascii")
        return lock


def _fresh(folder: Path) -> tuple[Path, JobLock]:
    path = folder / f"{time.time_ns():020d}"
    lock = JobLock.take(path)
    assert lock is not None, "nobody else makes this file"
    return path, lock


def _held(folder: Path) -> Iterator[Path]:
    """The files whose holder lives, oldest first; the others are removed."""
    for path in sorted(folder.iterdir()):
        lock = JobLock.take(path)
        if lock is None:
            yield path
        else:
            path.unlink(missing_ok=True)
            lock.close()
