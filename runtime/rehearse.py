"""Troubles of the service, played as it tells them, so that code that retries can be tried (``--rehearse``). Pure.

Messages and outcomes as in contract 5.2, 5.5 and 9.3. A rehearsal starts nothing and charges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hotfire.runtime.errors import HotfireError, ResourceLimitExceeded
from hotfire.runtime.outcome import Outcome
from hotfire.runtime.spec import TrainingJob
from hotfire.runtime.status import SecondaryStatus

_S = SecondaryStatus

NO_CAPACITY = (
    "CapacityError: Unable to provision requested ML compute capacity. "
    "Please retry using a different ML instance type."
)
DOWNLOAD_FAILED = (
    "ClientError: Data download failed:AccessDenied (403): Access Denied for S3 data source: {uri}"
)


class Rehearsal(StrEnum):
    """The word of ``--rehearse``."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    UNHEALTHY_HOST = "unhealthy-host"
    DOWNLOAD_ERROR = "download-error"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One move of the job's record. The same status again replaces the message."""

    status: SecondaryStatus
    message: str


@dataclass(frozen=True, kw_only=True)
class Play:
    """What the service would do.

    ``refusal`` is raised by CreateTrainingJob, and there is no job. Otherwise the record moves through ``steps``; then
    the job ends with ``outcome``, or runs as usual from Starting on when that is None.
    """

    refusal: HotfireError | None = None
    steps: tuple[Step, ...] = ()
    outcome: Outcome | None = None


_STARTING = (
    Step(status=_S.STARTING, message="Starting the training job"),
    Step(status=_S.STARTING, message="Launching requested ML instances"),
)


def play(rehearsal: Rehearsal, job: TrainingJob) -> Play:
    """The trouble as ``job`` would meet it: with its instance types, its channels, and spot or not."""
    match rehearsal:
        case Rehearsal.CAPACITY:
            return _capacity(job)
        case Rehearsal.QUOTA:
            return Play(refusal=_quota(job))
        case Rehearsal.UNHEALTHY_HOST:
            message = "Launched instance was unhealthy, replacing it!"
            return Play(steps=(*_STARTING, Step(status=_S.STARTING, message=message)))
        case Rehearsal.DOWNLOAD_ERROR:
            return _download_error(job)


def _capacity(job: TrainingJob) -> Play:
    """A spot job waits for capacity until MaxWaitTimeInSeconds is over (contract 5.2); others fail."""
    message = "Insufficient capacity error from EC2 while launching instances, retrying!"
    waiting = (*_STARTING, Step(status=_S.STARTING, message=message))
    if not job.enable_managed_spot_training:
        reason = Outcome(status=_S.FAILED, failure_reason=NO_CAPACITY)
        return Play(steps=waiting, outcome=reason)
    stopping = Step(status=_S.STOPPING, message="Stopping the training job")
    return Play(steps=(*waiting, stopping), outcome=Outcome(status=_S.MAX_WAIT_TIME_EXCEEDED))


def _quota(job: TrainingJob) -> HotfireError:
    group = job.resource_config.instance_groups[0]
    usage = "spot training job usage" if job.enable_managed_spot_training else "training job usage"
    return ResourceLimitExceeded(
        f"The account-level service limit '{group.instance_type} for {usage}' is 0 Instances, with current "
        f"utilization of 0 Instances and a request delta of {group.instance_count} Instances. "
        "Please contact AWS support to request an increase for this limit.",
        do="This is a rehearsal (--rehearse quota): nothing was refused for real.",
    )


def _download_error(job: TrainingJob) -> Play:
    sources = (getattr(one.data_source, "s3_uri", "") for one in job.input_data_config)
    uri = next((uri for uri in sources if uri), "s3://bucket/prefix")
    steps = (
        *_STARTING,
        Step(status=_S.STARTING, message="Preparing the instances for training"),
        Step(status=_S.DOWNLOADING, message="Downloading input data"),
    )
    outcome = Outcome(status=_S.FAILED, failure_reason=DOWNLOAD_FAILED.format(uri=uri)[:1024])
    return Play(steps=steps, outcome=outcome)
