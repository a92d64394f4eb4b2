"""The process of a job that came through the endpoint: waits for its turn, then supervises the job.

``python -m hotfire.runtime.endpoint.waiting NAME LOCK share FD``, or ``... ticket FD PATH GIB JOBS MEMORY``, the last
three of which are the job's memory and the limits, 0 for none; descriptors are inherited. The job's lock is held from
the beginning, so a job that waits is as alive as one that runs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hotfire.runtime import handover, runner, service, supervisor
from hotfire.runtime.control import Control
from hotfire.runtime.endpoint.admission import Admission, Capacity, Ticket
from hotfire.runtime.events import ignore
from hotfire.runtime.journal import Journal
from hotfire.runtime.layout import JobDir
from hotfire.runtime.status import SecondaryStatus
from hotfire.runtime.store import JobLock
from hotfire.runtime.surroundings import Options, Surroundings

POLL_SECONDS = 0.2


def admission(around: Surroundings, capacity: Capacity) -> Admission:
    """The shares of the store's jobs."""
    return Admission(around.store.home / "slots", capacity)


def start(
    prepared: runner.Preparation,
    options: Options,
    around: Surroundings,
    *,
    capacity: Capacity,
    place: JobLock | Ticket,
    banner: Sequence[str],
) -> JobDir:
    """Create the job and leave it to a process of its own. ``place`` is the caller's to close, as after an error.

    Raises:
        ResourceInUse: the name is taken.
    """
    job_dir, lock = service.create(prepared, options, around)
    job_dir.banner.write_text("".join(f"{line}\n" for line in banner), encoding="utf-8")
    held = place if isinstance(place, JobLock) else place.lock
    words = ["share", str(held.fileno())]
    if isinstance(place, Ticket):
        limits = (place.memory_gib, capacity.jobs, capacity.memory_gib or 0)
        words = ["ticket", str(held.fileno()), str(place.path), *map(str, limits)]
    handover.detach(job_dir, lock, around, __name__, words, [held.fileno()])
    return job_dir


def wait_for_turn(job_dir: JobDir, ticket: Ticket, shares: Admission) -> JobLock | None:
    """A share for the job, which is Pending until then; None when it was stopped instead, and is terminal."""
    control = Control(job_dir.control)
    journal = Journal(job_dir, control, ignore)
    waiting = False
    while (share := shares.turn(ticket)) is None:
        if control.stop_asked:
            ticket.close()
            journal.move(SecondaryStatus.STOPPING, "Stopping the training job")
            stopped = SecondaryStatus.STOPPED
            journal.move(stopped, supervisor.MESSAGES[stopped])
            return None
        if not waiting:
            waiting = True
            text = f"Waiting for capacity: the endpoint runs {shares.capacity} at once"
            journal.move(SecondaryStatus.PENDING, text)
        time.sleep(POLL_SECONDS)
    if waiting:
        journal.move(SecondaryStatus.STARTING, "Starting the training job")
    return share


def main(arguments: Sequence[str]) -> int:
    """Wait, supervise; the exit code is the supervisor's."""
    name, lock, kind, descriptor, *rest = arguments
    held = JobLock(int(descriptor))
    os.set_inheritable(int(descriptor), False)
    around = Surroundings.here()
    job_dir = around.store.open(name)
    if kind == "ticket":
        os.set_inheritable(int(lock), False)
        path, needed, jobs, memory = rest
        capacity = Capacity(jobs=int(jobs), memory_gib=float(memory) or None)
        ticket = Ticket(Path(path), held, float(needed))
        share = wait_for_turn(job_dir, ticket, admission(around, capacity))
        if share is None:
            JobLock(int(lock)).close()
            return 0
        held = share
    try:
        return supervisor.main([name, lock])
    finally:
        held.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
