"""How many jobs of the endpoint run at once: slots that are locks, and tickets for those who wait, in order.

A lock is let go when its last holder ends, however it ends; nothing has to be cleaned up after a crash. Slots are
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


@dataclass(frozen=True)
class Ticket:
    """A place in the queue, as long as the lock is held."""

    path: Path
    lock: JobLock

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        self.lock.close()


@dataclass(frozen=True)
class Admission:
    """The slots below ``root``; ``limit`` jobs at once."""

    root: Path
    limit: int

    @property
    def _queue(self) -> Path:
        return self.root / "queue"

    def enter(self) -> JobLock | None:
        """A slot, at once; None when all are taken or somebody waits already."""
        with self._alone():
            return None if self._first_waiting() else self._free()

    def queue_up(self) -> Ticket:
        """The last place of the queue."""
        with self._alone():
            path = self._queue / f"{time.time_ns():020d}"
            lock = JobLock.take(path)
            assert lock is not None, "nobody else makes this file"
            return Ticket(path, lock)

    def turn(self, ticket: Ticket) -> JobLock | None:
        """The slot of the first in the queue, who has left it then; None for the others, and while all are taken."""
        with self._alone():
            if self._first_waiting() != ticket.path:
                return None
            slot = self._free()
            if slot is not None:
                ticket.close()
            return slot

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._queue.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _first_waiting(self) -> Path | None:
        for path in sorted(self._queue.iterdir()):
            lock = JobLock.take(path)
            if lock is None:
                return path
            # Whoever waited here has gone.
            path.unlink(missing_ok=True)
            lock.close()
        return None

    def _free(self) -> JobLock | None:
        for number in range(self.limit):
            lock = JobLock.take(self.root / f"slot-{number}")
            if lock is not None:
                return lock
        return None
