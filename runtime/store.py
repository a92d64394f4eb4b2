"""Jobs on disk: one directory and one record each. The directory is the database, and every file in it is whole.

A job's directory is made aside and renamed into place, so a name is either free or belongs to a complete job, and two
commands that want the same name cannot both have it. Whoever supervises a job holds an ``flock`` on its ``lock`` file
from before the job is visible until it is terminal: that is how others know that it lives, without process ids.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hotfire.runtime.backends.copying import remove_tree
from hotfire.runtime.backends.isolation import STALE_MARK
from hotfire.runtime.errors import PlatformError, ResourceInUse, ResourceNotFound, ValidationError
from hotfire.runtime.layout import JobDir
from hotfire.runtime.status import NEXT, JobRecord, SecondaryStatus

if TYPE_CHECKING:
    from hotfire.runtime.spec import TrainingJob

RESERVE = "reserve"
"""A file of a live job's directory whose space the record may have when the disk is full."""
RESERVED_BYTES = 32 << 10

YOUNG_SECONDS = 60.0
"""Age up to which nobody else touches a directory that becomes a job."""

LOST_SUPERVISOR = "We encountered an internal error. Please try again. (the process that supervised the job has gone)"


def write_record(job_dir: JobDir, record: JobRecord) -> None:
    """Put ``record`` on disk; on a full one in the space that was reserved for it.

    Raises:
        PlatformError: it cannot be written.
    """
    try:
        try:
            write_json(job_dir.record, record.to_json())
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            (job_dir.root / RESERVE).unlink(missing_ok=True)
            write_json(job_dir.record, record.to_json())
        if record.status.terminal:
            (job_dir.root / RESERVE).unlink(missing_ok=True)
    except OSError as error:
        raise PlatformError(
            f"{job_dir.record} cannot be written: {error.strerror}.",
            do="Make room or rights there; the job is then Failed for whoever asks.",
        ) from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace ``path`` as a whole: a reader, or a crash, sees the old document or the new one."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            json.dump(value, out, ensure_ascii=False, indent=1)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class JobLock:
    """The supervisor's hold on a job. Closing it, or the death of the process, lets go."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> Self | None:
        """The lock, or None while another process has it."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            # Whether the job lives can be asked on a read-only disk too.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls(descriptor)

    def fileno(self) -> int:
        """For handing the lock on to a child process, which holds it as long as it has the descriptor."""
        return self._descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True)
class Store:
    """All jobs below ``home``."""

    home: Path
    lost: Callable[[JobDir], None] = field(default=lambda job_dir: None, compare=False)
    """Told of a job whose supervisor turned out to have gone, before what it had for itself is removed."""
    resume: Callable[[JobDir, JobLock], None] | None = field(default=None, compare=False)
    """Starts another supervisor for such a job, and gives it the lock, if the job's RetryStrategy wants one more try."""

    @property
    def jobs(self) -> Path:
        return self.home / "jobs"

    def create(
        self, job: TrainingJob, options: Mapping[str, Any], now: datetime
    ) -> tuple[JobDir, JobLock]:
        """Reserve the name and write the first record; the caller supervises from here on.

        Raises:
            ResourceInUse: the name is taken, with the service's text (contract 9.3).
            ValidationError: the store cannot be written.
        """
        record = JobRecord(name=job.training_job_name, creation_time=now).moved(
            SecondaryStatus.STARTING, "Starting the training job", now
        )
        try:
            self.jobs.mkdir(parents=True, exist_ok=True)
            fresh = JobDir(Path(tempfile.mkdtemp(prefix=".new-", dir=self.jobs)))
        except OSError as error:
            raise ValidationError(
                f"the job store {self.jobs} cannot be written: {error.strerror}.",
                do="Set HOTFIRE_HOME to a directory of yours.",
            ) from error
        lock = None
        try:
            for path in (fresh.control, fresh.artifacts):
                path.mkdir()
            write_json(fresh.request, dict(job.request))
            write_json(fresh.options, options)
            write_json(fresh.record, record.to_json())
            (fresh.root / RESERVE).write_bytes(bytes(RESERVED_BYTES))
            lock = JobLock.take(fresh.lock)
            assert lock is not None, "nobody else knows this directory"
            target = JobDir(self.jobs / job.training_job_name)
            fresh.root.rename(target.root)
        except BaseException as error:
            if lock is not None:
                lock.close()
            shutil.rmtree(fresh.root, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise ResourceInUse(
                    "Training job names must be unique within an AWS account and region, and a training job with "
                    f"this name already exists ({job.training_job_arn})",
                    do=f"Choose another with --name, pass --replace, or: hotfire delete {job.training_job_name}",
                ) from error
            raise
        return target, lock

    def open(self, name: str) -> JobDir:
        """The directory of an existing job.

        Raises:
            ResourceNotFound: there is none, with the service's text (contract 9.2).
        """
        job_dir = JobDir(self.jobs / name)
        if name in ("", ".", "..") or "/" in name or not job_dir.record.is_file():
            raise ResourceNotFound(
                f"Requested resource not found: no training job {name!r} in {self.home}.",
                do="hotfire ps lists the jobs.",
            )
        return job_dir

    def names(self) -> list[str]:
        """Names of all jobs, oldest directory first."""
        found = [
            entry
            for entry in (self.jobs.iterdir() if self.jobs.is_dir() else ())
            if not entry.name.startswith(".") and JobDir(entry).record.is_file()
        ]
        return [path.name for path in sorted(found, key=lambda path: path.stat().st_mtime)]

    def record(self, name: str) -> JobRecord:
        """The record of a job, made true first: a job without a supervisor is not in progress, or gets another one.

        Raises:
            ResourceNotFound: no such job.
            PlatformError: the record cannot be read.
        """
        job_dir = self.open(name)
        record = read_record(job_dir)
        if record.status.terminal:
            return record
        lock = JobLock.take(job_dir.lock)
        if lock is None:
            return record
        try:
            # Again, now that nobody else can write: the supervisor may have finished in between.
            record = read_record(job_dir)
            if not record.status.terminal:
                resume = self.resume if retriable(record, self.request(name)) else None
                record = (_restarting if resume else _lost)(record, _last_sign(job_dir))
                # The answer is true even where it cannot be written down.
                with contextlib.suppress(PlatformError):
                    write_record(job_dir, record)
                    self.lost(job_dir)
                    _tidy(job_dir)
                    if resume:
                        resume(job_dir, lock)
        finally:
            lock.close()
        return record

    def request(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self.open(name).request.read_text(encoding="utf-8")))

    @contextlib.contextmanager
    def holding(self, name: str, verb: str) -> Iterator[JobDir]:
        """Keep everybody else from a job without a supervisor while it is changed. ``verb``: deleted, uploaded.

        Raises:
            ResourceNotFound: no such job.
            ResourceInUse: the job is not terminal (contract 9.2).
        """
        job_dir = self.open(name)
        lock = JobLock.take(job_dir.lock)
        if lock is None:
            raise ResourceInUse(
                f"training job {name} is in progress and cannot be {verb}.",
                do=f"Stop it first: hotfire stop {name}",
            )
        try:
            yield job_dir
        finally:
            lock.close()

    @contextlib.contextmanager
    def removing(self, name: str) -> Iterator[JobDir]:
        """Hold the job while the caller looks at what it leaves; delete it, and free its name, afterwards.

        Raises:
            ResourceNotFound: no such job.
            ResourceInUse: the job is not terminal (contract 9.2).
        """
        with self.holding(name, "deleted") as job_dir:
            yield job_dir
            # Renamed first, so that a deletion that is cut short never leaves half a job under its name.
            doomed = self.jobs / f".gone-{os.getpid()}-{name}"
            job_dir.root.rename(doomed)
            remove_tree(doomed)

    def sweep(self) -> None:
        """Remove what an interrupted ``create`` or ``delete`` left."""
        for path in self.jobs.glob(".gone-*") if self.jobs.is_dir() else ():
            remove_tree(path)
        for path in self.jobs.glob(".new-*") if self.jobs.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime < YOUNG_SECONDS:
                    continue  # its `create` may not have come to the lock yet
            lock = JobLock.take(JobDir(path).lock) if path.is_dir() else None
            if lock is not None:
                remove_tree(path)
                lock.close()


def retriable(record: JobRecord, request: Mapping[str, Any]) -> bool:
    """Whether RetryStrategy covers one more error of the platform side, at this point of the job (contract 5.11)."""
    most = request.get("RetryStrategy", {}).get("MaximumRetryAttempts", 0)
    possible = SecondaryStatus.RESTARTING in NEXT[record.secondary_status]
    return possible and record.restarts < int(most)


def _last_sign(job_dir: JobDir) -> datetime:
    """When somebody last supervised the job, as its files tell: the time until it was missed is no training time."""
    files = [job_dir.record, *job_dir.root.glob("attempts/*/*/samples.csv")]
    return datetime.fromtimestamp(max(path.stat().st_mtime for path in files), UTC)


def _restarting(record: JobRecord, gone: datetime) -> JobRecord:
    return record.moved(SecondaryStatus.RESTARTING, "Restarting the training job", gone)


def _lost(record: JobRecord, gone: datetime) -> JobRecord:
    ended = record.moved(SecondaryStatus.FAILED, "Training job failed", gone)
    return replace(
        ended,
        failure_reason=f"InternalServerError: {LOST_SUPERVISOR}",
        training_end_time=ended.visits[-1].start if record.training_start_time else None,
    )


def _tidy(job_dir: JobDir) -> None:
    """Remove what a supervisor that was killed had for itself; what the hosts wrote stays."""
    for scratch in job_dir.root.glob("attempts/*/*/scratch"):
        # This mark tells the next job that a link at /opt/ml is stale.
        if not (scratch / STALE_MARK).exists():
            with contextlib.suppress(OSError):
                remove_tree(scratch)
    for pid in job_dir.root.glob("attempts/*/*/pid"):
        pid.unlink(missing_ok=True)
    for left in job_dir.root.glob(f".{job_dir.record.name}.*"):
        left.unlink(missing_ok=True)


def read_record(job_dir: JobDir) -> JobRecord:
    """The record as it is on disk.

    Raises:
        PlatformError: it is missing or not a record.
    """
    try:
        return JobRecord.from_json(json.loads(job_dir.record.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlatformError(
            f"the record of job {job_dir.name} cannot be read: {error}.",
            do=f"Look at {job_dir.record}; hotfire delete {job_dir.name} removes the job.",
        ) from error
