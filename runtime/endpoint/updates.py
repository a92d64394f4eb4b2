"""UpdateTrainingJob: what it changes is kept beside the request, and reaches the hosts that run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hotfire.runtime.errors import ValidationError
from hotfire.runtime.layout import JobDir
from hotfire.runtime.status import JobRecord, SecondaryStatus
from hotfire.runtime.store import write_json

Members = dict[str, Any]
PROFILER_FILE = "profilerconfig.json"
_OF_LIVE_JOBS = ("ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig")
_DEBUGGED = (SecondaryStatus.DOWNLOADING, SecondaryStatus.TRAINING)


def read(job_dir: JobDir) -> Members:
    """Members that DescribeTrainingJob tells in the place of the request's."""
    try:
        return dict(json.loads(job_dir.updates.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}


def keep(job_dir: JobDir, members: Mapping[str, Any]) -> None:
    """Add to what :func:`read` gives."""
    write_json(job_dir.updates, {**read(job_dir), **members})


def check(asked: Mapping[str, Any], record: JobRecord) -> None:
    """Whether the job is in a state that lets this be changed.

    Raises:
        ValidationError: it is not.
    """
    live = [name for name in _OF_LIVE_JOBS if name in asked]
    if live and record.status.terminal:
        raise ValidationError(
            f"The request was rejected because the training job is in status {record.status.value}; {live[0]} can be "
            "updated while it runs."
        )
    if "RemoteDebugConfig" in asked and record.secondary_status not in _DEBUGGED:
        # The API reference's own rule.
        raise ValidationError(
            "RemoteDebugConfig can be updated while SecondaryStatus is Downloading or Training, and it is "
            f"{record.secondary_status.value}."
        )


def apply(asked: Mapping[str, Any], known: Mapping[str, Any], job_dir: JobDir) -> None:
    """Keep what was asked, member by member within each part, and hand a new profiler configuration to the hosts.

    Args:
        asked: the request without the job's name.
        known: the described job.
    """
    merged = {
        name: {**known.get(name, {}), **value} if isinstance(value, Mapping) else value
        for name, value in asked.items()
    }
    keep(job_dir, merged)
    if "ProfilerConfig" not in merged:
        return
    # The debugger's hook reads the file again when it has changed.
    for attempt in job_dir.attempts()[-1:]:
        for config in (job_dir.root / "attempts" / str(attempt)).glob("*/ml/input/config"):
            write_json(config / PROFILER_FILE, merged["ProfilerConfig"])
            (config / PROFILER_FILE).chmod(0o644)
