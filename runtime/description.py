"""What the store knows of jobs: their description, logs, resources and disk use."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hotfire.runtime import masking
from hotfire.runtime.errors import PlatformError, ResourceNotFound
from hotfire.runtime.layout import HostDir
from hotfire.runtime.observe import log_pieces
from hotfire.runtime.observe.logs import LogPump
from hotfire.runtime.status import JobRecord, SecondaryStatus
from hotfire.runtime.surroundings import Surroundings

if TYPE_CHECKING:
    from hotfire.runtime.observe.samples import Usage

FOLLOW_SECONDS = 0.05
"""Between two looks at a log that does not grow."""


def describe(name: str, around: Surroundings, *, masked: bool = True) -> dict[str, Any]:
    """DescribeTrainingJob: the request with the service's defaults, and the record (contract 9.2).

    Times are ISO-8601 in UTC. ``masked``: what looks like a secret is hidden, since the answer is going to be printed;
    the service itself echoes everything. Raises ResourceNotFound for an unknown name.
    """
    # Only here, since lists of jobs do without the service's rules and tables, a third of their time.
    from hotfire.runtime import request

    record = around.store.record(name)
    asked = around.store.request(name)
    job = request.parse(asked, region=around.region, cache_dir=around.cache)
    algorithm = {"EnableSageMakerMetricsTimeSeries": False, **asked["AlgorithmSpecification"]}
    none = {"CompressionType": "None", "RecordWrapperType": "None"}
    answer: dict[str, Any] = {
        **asked,
        "TrainingJobName": name,
        "TrainingJobArn": job.training_job_arn,
        "ModelArtifacts": {"S3ModelArtifacts": record.s3_model_artifacts},
        "TrainingJobStatus": record.status.value,
        "SecondaryStatus": record.secondary_status.value,
        "AlgorithmSpecification": algorithm,
        "OutputDataConfig": {
            "KmsKeyId": "",
            "CompressionType": "GZIP",
            **asked["OutputDataConfig"],
        },
        "StoppingCondition": {
            "MaxRuntimeInSeconds": job.stopping_condition.max_runtime_in_seconds,
            **asked.get("StoppingCondition", {}),
        },
        "CreationTime": record.creation_time.isoformat(),
        "LastModifiedTime": (record.last_modified_time or record.creation_time).isoformat(),
        "SecondaryStatusTransitions": [visit.to_json() for visit in record.visits],
        "EnableNetworkIsolation": job.enable_network_isolation,
        "EnableInterContainerTrafficEncryption": bool(
            asked.get("EnableInterContainerTrafficEncryption", False)
        ),
        "EnableManagedSpotTraining": job.enable_managed_spot_training,
        "ProfilingStatus": "Disabled",
    }
    answer.pop("Tags", None)  # DescribeTrainingJob has no such member; ListTags has.
    if "InputDataConfig" in asked:
        answer["InputDataConfig"] = [{**none, **channel} for channel in asked["InputDataConfig"]]
    if metrics := record.receipt.get("metrics"):
        answer["FinalMetricDataList"] = metrics
    if record.failure_reason:
        answer["FailureReason"] = record.failure_reason
    if record.training_start_time is not None:
        answer["TrainingStartTime"] = record.training_start_time.isoformat()
    if record.training_end_time is not None:
        answer["TrainingEndTime"] = record.training_end_time.isoformat()
    if (seconds := record.training_seconds) is not None:
        answer["TrainingTimeInSeconds"] = seconds
        billable = int(record.receipt.get("billable_seconds", seconds))
        answer["BillableTimeInSeconds"] = (
            min(billable, seconds) if job.enable_managed_spot_training else seconds
        )
    for member in ("Environment", "HyperParameters") if masked else ():
        if member in answer:
            answer[member] = masking.masked_mapping(answer[member])
    return answer


def readable(name: str, around: Surroundings) -> JobRecord:
    """The record of a job; one that cannot be read counts as Failed, and must not hide all other jobs."""
    try:
        return around.store.record(name)
    except PlatformError as error:
        made = datetime.fromtimestamp(around.store.open(name).root.stat().st_mtime, UTC)
        blank = JobRecord(name=name, creation_time=made, failure_reason=error.what)
        return blank.moved(SecondaryStatus.FAILED, error.what, made)


def list_jobs(around: Surroundings) -> list[dict[str, Any]]:
    """TrainingJobSummaries, newest first, with ``DiskBytes`` beside the API's members."""
    around.store.sweep()
    found = [readable(name, around) for name in around.store.names()]
    found.sort(key=lambda record: record.creation_time, reverse=True)
    return [
        {
            "TrainingJobName": record.name,
            "CreationTime": record.creation_time.isoformat(),
            **(
                {"TrainingEndTime": record.training_end_time.isoformat()}
                if record.training_end_time
                else {}
            ),
            "LastModifiedTime": (record.last_modified_time or record.creation_time).isoformat(),
            "TrainingJobStatus": record.status.value,
            "SecondaryStatus": record.secondary_status.value,
            "DiskBytes": disk_bytes(record, around),
        }
        for record in found
    ]


def disk_bytes(record: JobRecord, around: Surroundings) -> int:
    """What a job holds on this disk; of one that has ended, as it was then."""
    known = record.receipt.get("disk_bytes") if record.status.terminal else None
    if isinstance(known, int):
        return known
    from hotfire.runtime.observe.samples import tree_bytes

    return tree_bytes(around.store.open(record.name).root)


def host_dirs(
    name: str, around: Surroundings, *, host: str | None, attempt: int | None
) -> tuple[int, dict[str, HostDir]]:
    """The number of an attempt of a job (default: the last one), and the directories of its hosts, or of one.

    Raises:
        ResourceNotFound: no such job, host or attempt.
    """
    job_dir = around.store.open(name)
    attempts = job_dir.attempts()
    number = attempt if attempt is not None else (attempts[-1] if attempts else 1)
    if attempts and number not in attempts:
        raise ResourceNotFound(
            f"job {name} has no attempt {number}.", do=f"It has: {', '.join(map(str, attempts))}"
        )
    hosts = hosts_of(around.store.request(name))
    if host is not None and host not in hosts:
        raise ResourceNotFound(
            f"job {name} has no host {host!r}.", do=f"It has: {', '.join(hosts)}"
        )
    return number, {one: job_dir.host(number, one) for one in ([host] if host else hosts)}


def hosts_of(asked: Mapping[str, Any]) -> list[str]:
    """The host names of a request, in numeric order."""
    config = asked["ResourceConfig"]
    groups = config.get("InstanceGroups") or [config]
    return [f"algo-{n + 1}" for n in range(sum(group["InstanceCount"] for group in groups))]


def resource_samples(name: str, around: Surroundings) -> dict[str, list[Usage]]:
    """What each host of a job used, over all attempts; hosts without a sample are left out."""
    from hotfire.runtime.observe.samples import read_samples

    job_dir = around.store.open(name)
    found = {
        host: [
            row
            for attempt in job_dir.attempts()
            for row in read_samples(job_dir.host(attempt, host).samples)
        ]
        for host in hosts_of(around.store.request(name))
    }
    return {host: rows for host, rows in found.items() if rows}


def resource_summaries(name: str, around: Surroundings) -> dict[str, dict[str, Any]]:
    """Peaks and means of each host: of the last attempt once the job has ended, else of what was seen until now."""
    if known := around.store.record(name).receipt.get("resources"):
        return dict(known)
    from hotfire.runtime.observe.samples import summary_of

    return {host: summary_of(rows) for host, rows in resource_samples(name, around).items()}


def read_logs(
    name: str,
    around: Surroundings,
    begin: Callable[[int, Mapping[str, HostDir]], Any],
    *,
    host: str | None = None,
    attempt: int | None = None,
    follow: bool = False,
) -> None:
    """Hand the logs of one attempt (default: the last one) to the observer of chunks that ``begin`` makes for it.

    With ``follow``, go on until the job has ended, with the attempts that come meanwhile unless one was chosen.

    Raises:
        ResourceNotFound: no such job, host or attempt.
        OSError: of the observer, if it raises one.
    """
    number, dirs = host_dirs(name, around, host=host, attempt=attempt)
    job_dir, over = around.store.open(name), False
    while True:
        logs = {one: directory.log for one, directory in dirs.items()}
        pump = LogPump(logs, begin(number, dirs))
        while follow and not (over := around.store.record(name).status.terminal):
            if number < max(job_dir.attempts(), default=0):
                break
            if not pump.read():
                time.sleep(FOLLOW_SECONDS)
        pump.finish()
        if not follow or attempt is not None:
            return
        if over and number >= max(job_dir.attempts(), default=0):
            return
        number, dirs = host_dirs(name, around, host=host, attempt=number + 1)


def samples_per_second(name: str, around: Surroundings) -> str:
    """The last training speed that the first host printed, or nothing."""
    _, dirs = host_dirs(name, around, host=None, attempt=None)
    found = _SPEED.findall(log_pieces.tail(next(iter(dirs.values())).log, 1 << 18))
    return found[-1].decode() if found else ""


_SPEED = re.compile(rb"(?:train_)?samples_per_sec(?:ond)?['\"]?\s*[:=]\s*([0-9]+(?:\.[0-9]+)?)")
