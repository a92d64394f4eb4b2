"""The process that owns a running job: takes signals, runs attempts, writes down how the job ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotfire.runtime import outcome, runner
from hotfire.runtime.control import Control, StopAsked, Trigger
from hotfire.runtime.errors import DataError, HotfireError, PlatformError
from hotfire.runtime.events import Event, Metrics, Note, Observer, ignore
from hotfire.runtime.journal import Journal
from hotfire.runtime.layout import JobDir
from hotfire.runtime.observe.metric_files import PointFile, write_statistics
from hotfire.runtime.observe.metrics import MetricPoint, Scraper, Sink, final_metrics, nowhere
from hotfire.runtime.outcome import Outcome
from hotfire.runtime.runner import Preparation
from hotfire.runtime.status import JobRecord, SecondaryStatus
from hotfire.runtime.storage import local_fault, no_room
from hotfire.runtime.store import JobLock
from hotfire.runtime.watch import Limits

MESSAGES = {
    SecondaryStatus.COMPLETED: "Training job completed",
    SecondaryStatus.FAILED: "Training job failed",
    SecondaryStatus.STOPPED: "Training job stopped",
    SecondaryStatus.MAX_RUNTIME_EXCEEDED: "Training job stopped: MaxRuntimeInSeconds exceeded",
    SecondaryStatus.MAX_WAIT_TIME_EXCEEDED: "Training job stopped: MaxWaitTimeInSeconds exceeded",
}
LITTLE_ROOM = 1 << 20
"""Free bytes below which a disk counts as full."""
RESTART_SECONDS = 1.0
"""Between an interruption and the next attempt; the service takes minutes to find capacity."""


def supervise(
    prepared: Preparation,
    job_dir: JobDir,
    lock: JobLock,
    observer: Observer,
    trigger: Trigger | None = None,
) -> JobRecord:
    """Run a created job to its end in this process; the record on disk is terminal when this returns."""
    control = Control(job_dir.control, trigger)
    try:
        with signals(control), ExitStack() as undo:
            definitions = prepared.job.algorithm_specification.metric_definitions
            sink = undo.enter_context(PointFile(job_dir.points)) if definitions else nowhere
            scraper = Scraper(
                definitions=definitions, sink=telling(sink, observer), engine=prepared.regex
            )
            journal = Journal(job_dir, control, both(observer, scraper))
            decided, receipt = conclude(prepared, journal, control)
            scraper.close()
            warnings = [*decided.warnings, *receipt.pop("warnings", [])]
            warnings += summarise(scraper, job_dir)
            receipt |= {"metrics": final_metrics(scraper.statistics), "warnings": warnings}
            receipt["metric_counts"] = [one.summary() for one in scraper.statistics]
            finish(prepared, journal, decided, receipt)
    finally:
        lock.close()
    return journal.record


def summarise(scraper: Scraper, job_dir: JobDir) -> list[str]:
    """Keep the statistics of the metrics, and say what their patterns got wrong."""
    if not scraper.definitions:
        return []
    found = [text for one in scraper.statistics for text in one.warnings]
    try:
        write_statistics(job_dir.statistics, scraper.statistics)
    except OSError as error:
        # A full disk must not keep the job from its end; DescribeTrainingJob has the last values.
        found.append(f"the statistics of the metrics could not be written: {error.strerror}")
    return found


def telling(sink: Sink, observer: Observer) -> Sink:
    """A sink that also tells ``observer``."""

    def take(points: Sequence[MetricPoint]) -> None:
        sink(points)
        observer(Metrics(points=points))

    return take


def both(first: Observer, second: Observer) -> Observer:
    """One observer in the place of two."""

    def observe(event: Event) -> None:
        first(event)
        second(event)

    return observe


def fail(job_dir: JobDir, lock: JobLock, error: BaseException) -> None:
    """End a job that cannot even be prepared any more."""
    try:
        journal = Journal(job_dir, Control(job_dir.control), ignore)
        reason = failed_reason(error)
        journal.move(
            SecondaryStatus.FAILED, MESSAGES[SecondaryStatus.FAILED], failure_reason=reason
        )
    finally:
        lock.close()


def conclude(
    prepared: Preparation, journal: Journal, control: Control
) -> tuple[Outcome, dict[str, Any]]:
    """:func:`run_job`, with every way of not finishing it turned into an outcome."""
    try:
        return run_job(prepared, journal, control)
    except StopAsked:
        journal.move(SecondaryStatus.STOPPING, "Stopping the training job")
        return Outcome(status=SecondaryStatus.STOPPED), {}
    except HotfireError as error:
        tell(journal, error)
        reason = failed_reason(error)
    except Exception as error:  # noqa: BLE001
        if isinstance(error, OSError) and no_room(error):
            path = Path(os.fsdecode(error.filename or journal.job_dir.root))
            full = local_fault(error, path, "Free space, and start the job again.")
            tell(journal, full)
            return Outcome(status=SecondaryStatus.FAILED, failure_reason=failed_reason(full)), {}
        # Not foreseen: keep the evidence beside the record and end the job truthfully.
        log = journal.job_dir.root / "supervisor.log"
        with contextlib.suppress(OSError):
            log.write_text(traceback.format_exc(), encoding="utf-8")
        text = f"hotfire itself failed; the traceback is in {log}"
        journal(Note(text=text, warning=True))
        reason = failed_reason(error)
    return Outcome(status=SecondaryStatus.FAILED, failure_reason=reason), {}


def tell(journal: Journal, error: HotfireError) -> None:
    """Say on the console and in ``describe`` what happened and what to do."""
    text = f"{error.what.rstrip('.')}. {error.do}".replace("\n", " ").strip()
    journal(Note(text=text, warning=True))


def run_job(
    prepared: Preparation, journal: Journal, control: Control
) -> tuple[Outcome, dict[str, Any]]:
    """Attempts until one ends by itself or the limits are reached; then the artifacts of the last one.

    A job whose supervisor was lost goes on with its next attempt, and what is left of its limits.
    """
    if prepared.rehearsal is not None and (found := rehearse_trouble(prepared, journal, control)):
        return found, {}
    before = journal.job_dir.attempts()
    waited = (journal.now() - journal.record.creation_time).total_seconds() if before else 0.0
    began = time.monotonic() - waited
    spent = journal.record.spent_seconds
    if prepared.rehearsal is None:
        journal.move(SecondaryStatus.STARTING, "Starting the training job")
    for number in itertools.count(max(before, default=0) + 1):
        limits = limits_of(prepared, spent, time.monotonic() - began)
        try:
            attempted = runner.run_attempt(prepared, number, journal, control, limits)
        except PlatformError as error:
            # The only kind that RetryStrategy covers (contract 5.11).
            if journal.record.restarts >= prepared.job.maximum_retry_attempts:
                raise
            journal(Note(text=f"attempt {number}: {error.what} Trying again.", warning=True))
            journal.move(SecondaryStatus.RESTARTING, "Restarting the training job")
        else:
            spent += attempted.seconds
            if not attempted.interrupted:
                break
            journal.move(SecondaryStatus.INTERRUPTED, "The training job was interrupted")
        control.wait(RESTART_SECONDS)
        journal.move(SecondaryStatus.STARTING, "Starting the training job")
    decided = outcome.decide(attempted.exits, attempted.cause)
    failed = decided.status is SecondaryStatus.FAILED
    # A failed job's upload is outside its training time (contract 5.8).
    ended = {"training_end_time": journal.now()} if failed else {}
    journal.move(SecondaryStatus.UPLOADING, "Uploading generated training model", **ended)
    billable = max(1, round(spent * (1 - prepared.spot_discount)))
    receipt = {**attempted.receipt, "attempts": number, "billable_seconds": billable}
    if prepared.job.enable_managed_spot_training:
        receipt["spot_discount"] = prepared.spot_discount
    if failed and shutil.disk_usage(journal.job_dir.root).free < LITTLE_ROOM:
        # Neither the host's failure file nor its log may have found room for the cause.
        full = f"the disk of {journal.job_dir.root} is full: that may be why the job failed"
        journal(Note(text=full, warning=True))
        decided = replace(decided, warnings=(*decided.warnings, full))
    trouble = [attempted.trouble] if attempted.trouble is not None else []
    try:
        receipt |= upload(prepared, number, journal, control)
    except DataError as error:
        trouble.append(error)
    for one in trouble:
        tell(journal, one)
    if trouble and not failed:
        # What the hosts failed of comes first: a full disk there is the cause of a failed upload, not the reverse.
        reason = failed_reason(trouble[0])
        decided = replace(decided, status=SecondaryStatus.FAILED, failure_reason=reason)
    return decided, receipt


def upload(
    prepared: Preparation, number: int, journal: Journal, control: Control
) -> dict[str, Any]:
    """:func:`runner.collect`, as long as somebody wants to wait for it.

    Raises:
        DataError: it failed, or was given up.
    """
    name = prepared.job.training_job_name

    def warn() -> None:
        text = (
            f"the artifacts are being stored; Ctrl-C again gives up (then: hotfire upload {name})"
        )
        journal(Note(text=text, warning=True))

    try:
        return control.unless_given_up(
            lambda: runner.collect(
                prepared.job, prepared.locations, journal.job_dir, number, journal
            ),
            warn,
        )
    except StopAsked:
        raise DataError(
            "Artifact upload failed: given up, because a stop was asked for twice",
            do=f"What is left is kept. Then: hotfire upload {name}",
        ) from None


def rehearse_trouble(prepared: Preparation, journal: Journal, control: Control) -> Outcome | None:
    """Play the trouble that ``--rehearse`` asks for; how it ends the job, or None if the job goes on."""
    from hotfire.runtime import rehearse

    assert prepared.rehearsal is not None
    played = rehearse.play(prepared.rehearsal, prepared.job)
    journal(Note(text=f"--rehearse {prepared.rehearsal}: what follows is played", warning=True))
    for step in played.steps:
        begun = step.status is SecondaryStatus.DOWNLOADING
        first = {"training_start_time": journal.now()} if begun else {}
        journal.move(step.status, step.message, **first)
        if step.status is not SecondaryStatus.STOPPING:
            control.wait(RESTART_SECONDS)
    return played.outcome


def limits_of(prepared: Preparation, spent: float, waited: float) -> Limits:
    """What is left of the limits, which all attempts share (contract 5.3)."""
    condition = prepared.job.stopping_condition
    wait = condition.max_wait_time_in_seconds
    return Limits(
        max_runtime=condition.max_runtime_in_seconds - spent,
        max_wait=float("inf") if wait is None else wait - waited,
        grace=prepared.setting.grace,
    )


def failed_reason(error: BaseException) -> str:
    """FailureReason of a job that the platform side could not finish."""
    if isinstance(error, HotfireError):
        prefix = "InternalServerError" if error.api_code == "InternalServerError" else "ClientError"
        text = error.what
    else:
        prefix, text = "InternalServerError", f"{type(error).__name__}: {error}"
    return f"{prefix}: {text}"[: outcome.REASON_LIMIT]


def finish(
    prepared: Preparation, journal: Journal, decided: Outcome, receipt: dict[str, Any]
) -> None:
    """The last move, with everything that DescribeTrainingJob and the receipt will say."""
    from hotfire.runtime import artifacts
    from hotfire.runtime.observe.samples import tree_bytes

    record = journal.record
    # A list of many jobs has no time to walk over each.
    receipt = {**receipt, "disk_bytes": tree_bytes(journal.job_dir.root)}
    ends: dict[str, Any] = {}
    if record.training_start_time is not None and record.training_end_time is None:
        ends["training_end_time"] = journal.now()
    journal.move(
        decided.status,
        MESSAGES[decided.status],
        failure_reason=decided.failure_reason,
        s3_model_artifacts=artifacts.destinations(prepared.job).model,
        receipt=receipt,
        **ends,
    )


@contextlib.contextmanager
def signals(control: Control) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP ask the job to stop, as long as the ``with`` lasts and this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: object) -> None:
        control.stop()

    before = {
        number: signal.signal(number, ask)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(arguments: list[str]) -> int:
    """The supervisor of a detached job: ``python -m hotfire.runtime.supervisor NAME LOCK``.

    ``LOCK`` is the inherited descriptor of the job's lock; the job exists and its name is reserved.
    """
    from hotfire.runtime import service
    from hotfire.runtime.surroundings import Surroundings

    name, descriptor = arguments
    lock = JobLock(int(descriptor))
    os.set_inheritable(int(descriptor), False)
    record = service.resume(name, lock, Surroundings.here())
    return int(service.exit_code(record))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
