"""Training jobs as calls: create, run, stop, retry, delete. Values in, values out; errors are modelled.

The command line, the Python API and the HTTP endpoint are adapters over this module.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from hotfire.runtime import (
    control,
    credentials,
    request,
    runner,
    supervisor,
)
from hotfire.runtime.control import Interruption, Trigger
from hotfire.runtime.description import describe, readable
from hotfire.runtime.errors import (
    ExitCode,
    ResourceInUse,
    ResourceNotFound,
    ValidationError,
)
from hotfire.runtime.events import Note, Observer, ignore
from hotfire.runtime.handover import detach
from hotfire.runtime.layout import JobDir
from hotfire.runtime.preparation import prepare
from hotfire.runtime.status import JobRecord, TrainingJobStatus, utc_now
from hotfire.runtime.storage import Locations
from hotfire.runtime.store import JobLock, read_record, write_record
from hotfire.runtime.surroundings import Options, Surroundings


def run_prepared(
    prepared: runner.Preparation,
    options: Options,
    around: Surroundings,
    observer: Observer,
    *,
    replace_existing: bool = False,
) -> JobRecord:
    """Reserve the name and run the job to its end, supervised by this process."""
    job_dir, lock = create(prepared, options, around, replace_existing=replace_existing)
    return _supervised(prepared, options, job_dir, lock, around, observer)


def create(
    prepared: runner.Preparation,
    options: Options,
    around: Surroundings,
    *,
    replace_existing: bool = False,
) -> tuple[JobDir, JobLock]:
    """Reserve the name; the caller holds the job and must supervise it or hand the lock on.

    Raises:
        ResourceInUse: the name is taken.
        ResourceLimitExceeded: that is being rehearsed.
    """
    if prepared.rehearsal is not None:
        from hotfire.runtime.rehearse import play

        if no := play(prepared.rehearsal, prepared.job).refusal:
            raise no
    if replace_existing:
        with contextlib.suppress(ResourceNotFound):
            delete(prepared.job.training_job_name, around)
    return around.store.create(prepared.job, options.to_json(), utc_now())


def start_detached(
    prepared: runner.Preparation,
    options: Options,
    around: Surroundings,
    *,
    replace_existing: bool = False,
) -> str:
    """Create the job and leave it to a supervisor process of its own, which survives this one; returns the name."""
    job_dir, lock = create(prepared, options, around, replace_existing=replace_existing)
    detach(job_dir, lock, around, "hotfire.runtime.supervisor")
    return job_dir.name


def remembered(name: str, around: Surroundings) -> tuple[dict[str, Any], Options]:
    """The request and the options of an earlier job."""
    path = around.store.open(name).options
    options = Options.from_json(json.loads(path.read_text(encoding="utf-8")))
    return around.store.request(name), replace(options, interrupt_after="", rehearse="")


def next_name(name: str, around: Surroundings) -> str:
    """``NAME-2``, or the next number that is free; cut so that the service takes it."""
    taken = set(around.store.names())
    for number in itertools.count(2):
        fresh = f"{name[: 63 - len(str(number)) - 1].rstrip('-')}-{number}"
        if fresh not in taken:
            return fresh
    raise AssertionError


def resume(name: str, lock: JobLock, around: Surroundings) -> JobRecord:
    """Supervise a job that exists and whose lock is held: the detached supervisor's work."""
    job_dir = around.store.open(name)
    options = Options.from_json(json.loads(job_dir.options.read_text(encoding="utf-8")))
    try:
        prepared = prepare(around.store.request(name), options, around)
    except BaseException as error:
        # What was fine when the job was created is not any more; the job must not stay in progress.
        supervisor.fail(job_dir, lock, error)
        raise
    return _supervised(prepared, options, job_dir, lock, around, ignore)


def _supervised(
    prepared: runner.Preparation,
    options: Options,
    job_dir: JobDir,
    lock: JobLock,
    around: Surroundings,
    observer: Observer,
) -> JobRecord:
    with ExitStack() as undo:
        # Until the supervisor has it: an error here must not leave a job that is in progress for ever.
        undo.callback(lock.close)
        if not prepared.job.enable_network_isolation and credentials.at_hand(around.environ):
            server = undo.enter_context(credentials.CredentialServer(prepared.job.role_arn))
            prepared = with_credentials(prepared, server)
        trigger = Trigger.parse(options.interrupt_after) if options.interrupt_after else None
        return supervisor.supervise(prepared, job_dir, lock, observer, trigger)


def with_credentials(
    prepared: runner.Preparation, server: credentials.CredentialServer
) -> runner.Preparation:
    """The hosts find ``server`` at the service's own address where they have a network of their own, else by URL."""
    if prepared.network == "private" and prepared.backend.name == "process":
        from hotfire.runtime.backends.process import ProcessBackend

        where = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": server.path}
        prepared = replace(prepared, backend=ProcessBackend(serve=server.serve))
    else:
        where = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url}
    return replace(prepared, passed={**prepared.passed, **where})


def run(
    raw: Mapping[str, Any],
    *,
    options: Options | None = None,
    observer: Observer = ignore,
    environ: Mapping[str, str] | None = None,
    replace_existing: bool = False,
) -> dict[str, Any]:
    """Run one job in the foreground: what ``hotfire run`` does, from Python.

    Args:
        raw: a CreateTrainingJob request.
        options: what this machine contributes; see :class:`Options`.
        observer: receives log chunks, transitions, notes and progress, from several threads.
        environ: in place of ``os.environ``.

    Returns:
        DescribeTrainingJob's answer for the ended job. A job that failed is an answer and not an exception.

    Raises:
        ValidationError: the request is refused; nothing was started.
        ResourceInUse: the name is taken.
    """
    options = options or Options()
    around = Surroundings.here(environ)
    prepared = prepare(raw, options, around, observer)
    run_prepared(prepared, options, around, observer, replace_existing=replace_existing)
    return describe(prepared.job.training_job_name, around)


def stop(name: str, around: Surroundings) -> None:
    """StopTrainingJob: ask the supervisor, and return.

    Raises:
        ResourceInUse: the job has ended already, with the service's text (contract 9.2).
    """
    record = around.store.record(name)
    if record.status.terminal:
        raise ResourceInUse(
            f"The request was rejected because the training job is in status {record.status.value}.",
            do=f"hotfire describe {name} shows how it ended.",
        )
    (around.store.open(name).control / control.STOP).touch()


def interrupt(name: str, around: Surroundings, notice: float) -> None:
    """A spot interruption now: SIGTERM, ``notice`` seconds, SIGKILL, and a restart on fresh hosts.

    Raises:
        ResourceInUse: the job has ended.
        ValidationError: the job does not use managed spot training, so the service would never interrupt it.
    """
    record = around.store.record(name)
    if record.status.terminal:
        raise ResourceInUse(
            f"training job {name} is in status {record.status.value}.",
            do="Only a job that runs can be interrupted.",
        )
    if not around.store.request(name).get("EnableManagedSpotTraining"):
        raise ValidationError(
            f"training job {name} does not use managed spot training.",
            do="Create it with --use-spot --max-wait SECONDS.",
        )
    Interruption(notice).request(around.store.open(name).control)


def wait(name: str, around: Surroundings, seconds: float | None = None) -> JobRecord:
    """The record of a job once it is terminal, or as it is after ``seconds``."""
    end = None if seconds is None else time.monotonic() + seconds
    while not (record := around.store.record(name)).status.terminal:
        if end is not None and time.monotonic() > end:
            break
        time.sleep(0.1)
    return record


def delete(name: str, around: Surroundings, observer: Observer = ignore) -> None:
    """DeleteTrainingJob: all of the job's own directory goes, uploaded artifacts stay, the name is free again.

    Parts of uploads that were cut short are taken back; a warning names those that S3 does not let go now.
    """
    from hotfire.runtime.s3_abort import take_all_back

    with around.store.removing(name) as job_dir:
        for left in take_all_back(job_dir.uploads):
            text = (
                f"parts of an upload to {left.to.uri} stay in the bucket, and are charged for: aws s3api "
                f"abort-multipart-upload --bucket {left.bucket} --key '{left.key}' --upload-id {left.upload_id}"
            )
            observer(Note(text=text, warning=True))


def upload(name: str, around: Surroundings, observer: Observer = ignore) -> list[str]:
    """Bring to S3OutputPath what an upload that failed, or a supervisor that died, left here; the URIs.

    The job's status stays what it was. Nothing is left to do for a job whose artifacts were stored.

    Raises:
        ResourceInUse: the job is in progress.
        DataError: it failed again; what is left is kept, for another try.
    """
    from hotfire.runtime import artifacts
    from hotfire.runtime.observe.samples import tree_bytes
    from hotfire.runtime.s3_abort import take_all_back

    around.store.record(name)  # made true first
    with around.store.holding(name, "uploaded") as job_dir:
        record = read_record(job_dir)
        if "artifacts" in record.receipt or not (attempts := job_dir.attempts()):
            take_all_back(job_dir.uploads)
            return []
        job = request.parse(
            around.store.request(name), region=around.region, cache_dir=around.cache
        )
        _, options = remembered(name, around)
        locations = Locations.parse(options.maps, around.cwd)
        found = runner.collect(job, locations, job_dir, attempts[-1], observer, resume=True)
        to = artifacts.destinations(job).model
        held = tree_bytes(job_dir.root)
        receipt = {**record.receipt, "artifacts": found["artifacts"], "disk_bytes": held}
        write_record(job_dir, replace(record, receipt=receipt, s3_model_artifacts=to))
    return [one["uri"] for one in found["artifacts"]]


def older_than(age: str, around: Surroundings) -> list[str]:
    """Names of the jobs that ended longer ago than ``age``: a number and one of s, m, h, d.

    Raises:
        ValidationError: not an age.
    """
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    number, unit = age[:-1], age[-1:]
    if unit not in units or not number.isdecimal():
        raise ValidationError(f"{age!r} is not an age.", do="Give for example 7d, 12h or 30m.")
    limit = utc_now().timestamp() - int(number) * units[unit]
    ended = []
    for name in around.store.names():
        record = readable(name, around)
        if record.status.terminal and record.visits[-1].start.timestamp() <= limit:
            ended.append(name)
    return ended


def exit_code(record: JobRecord) -> ExitCode:
    """The command line's exit code for an ended job."""
    return {
        TrainingJobStatus.COMPLETED: ExitCode.COMPLETED,
        TrainingJobStatus.FAILED: ExitCode.FAILED,
        TrainingJobStatus.STOPPED: ExitCode.STOPPED,
    }.get(record.status, ExitCode.INTERNAL)
