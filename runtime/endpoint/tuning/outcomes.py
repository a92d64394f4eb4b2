"""What the training jobs of a tuning job came to: their summaries, the counters, the best one, and the rules over them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hotfire.runtime.endpoint.index import Row
from hotfire.runtime.endpoint.tuning.record import Record, Trial

Summary = dict[str, Any]
"""HyperParameterTrainingJobSummary; times are seconds since the epoch."""
BARREN = 5
"""Ended training jobs without an objective among them after which a tuning job has failed."""
IMPROVEMENT = 0.01
"""Share of the best objective by which a better one is an improvement (botocore: BestObjectiveNotImproving)."""
MEDIAN_OF = 3
"""Ended training jobs that the median rule needs."""


def summary(trial: Trial, row: Row, metric: str) -> Summary:
    """A training job as ListTrainingJobsForHyperParameterTuningJob tells it, without its ARN."""
    record = row.record
    found: Summary = {
        "TrainingJobName": trial.name,
        "CreationTime": row.created,
        "TrainingJobStatus": row.status,
        "TunedHyperParameters": dict(trial.parameters),
        "ObjectiveStatus": "Pending",
    }
    if record.training_start_time is not None:
        found["TrainingStartTime"] = record.training_start_time.timestamp()
    if not row.ended:
        return found
    found["TrainingEndTime"] = (record.training_end_time or record.visits[-1].start).timestamp()
    if record.failure_reason:
        found["FailureReason"] = record.failure_reason
    value = _final(record.receipt.get("metrics", ()), metric)
    if value is not None:
        final = {"MetricName": metric, "Value": value}
        found["FinalHyperParameterTuningJobObjectiveMetric"] = final
    # Jobs that the early stopping ended have an objective like the others.
    used = value is not None and row.status != "Failed"
    found["ObjectiveStatus"] = "Succeeded" if used else "Failed"
    return found


def _final(metrics: Sequence[Mapping[str, Any]], name: str) -> float | None:
    found = [one["Value"] for one in metrics if one["MetricName"] == name]
    return float(found[0]) if found and math.isfinite(found[0]) else None


def gone(trial: Trial, why: str, now: float) -> Summary:
    """Of a training job of which nothing is known any more."""
    return {
        "TrainingJobName": trial.name,
        "CreationTime": now,
        "TrainingEndTime": now,
        "TrainingJobStatus": "Failed",
        "TunedHyperParameters": dict(trial.parameters),
        "FailureReason": why,
        "ObjectiveStatus": "Failed",
    }


def objective(found: Mapping[str, Any]) -> float | None:
    """The value that the tuning uses; None where there is none."""
    if found["ObjectiveStatus"] != "Succeeded":
        return None
    return float(found["FinalHyperParameterTuningJobObjectiveMetric"]["Value"])


def counters(summaries: Sequence[Summary]) -> tuple[dict[str, int], dict[str, int]]:
    """TrainingJobStatusCounters and ObjectiveStatusCounters."""
    names = ("Completed", "InProgress", "RetryableError", "NonRetryableError", "Stopped")
    jobs = dict.fromkeys(names, 0)
    objectives = dict.fromkeys(("Succeeded", "Pending", "Failed"), 0)
    for one in summaries:
        status = one["TrainingJobStatus"]
        if status == "Failed":
            ours = one.get("FailureReason", "").startswith("InternalServerError")
            status = "RetryableError" if ours else "NonRetryableError"
        jobs["InProgress" if status == "Stopping" else status] += 1
        objectives[one["ObjectiveStatus"]] += 1
    return jobs, objectives


def best(summaries: Sequence[Summary], *, minimise: bool) -> Summary | None:
    """The best of those that completed; of equal ones the first."""
    done = [one for one in summaries if one["TrainingJobStatus"] == "Completed"]
    values = [(value, one) for one in done if (value := objective(one)) is not None]
    choose = min if minimise else max
    return choose(values, key=lambda pair: pair[0])[1] if values else None


def not_improving(record: Record, *, minimise: bool) -> int:
    """How many training jobs ended since the best objective last became better by 1%."""
    results = sorted(
        (one.result for one in record.trials if one.result), key=lambda one: one["TrainingEndTime"]
    )
    count, peak = 0, math.inf
    for result in results:
        value = objective(result)
        # As if it were to be minimised.
        value = math.inf if value is None else value if minimise else -value
        better = value < (peak - abs(peak) * IMPROVEMENT if math.isfinite(peak) else peak)
        count = 0 if better else count + 1
        peak = value if better else peak
    return count


def barren(record: Record, limit: int) -> str:
    """Why a tuning job has failed whose training jobs gave no objective; empty where they did, or may yet.

    Args:
        limit: how many training jobs there are to be.
    """
    results = [one.result for one in record.trials if one.result]
    if len(results) < min(BARREN, limit) or any(objective(one) is not None for one in results):
        return ""
    if all(one["TrainingJobStatus"] == "Failed" for one in results):
        return (
            "All training jobs failed. Please take a look at the training jobs failures to get more details: "
            f"{results[0].get('FailureReason', '')}"
        )[:1024]
    return (
        f"No objective metrics found after running {len(results)} training jobs. Please ensure that the custom algorithm "
        "is emitting the objective metric as defined by the regular expression provided."
    )


def hopeless(values: Sequence[float], ended: Sequence[Sequence[float]], *, minimise: bool) -> bool:
    """The median rule: the latest value is worse than the median, over ended jobs, of their averages up to that value.

    Args:
        values: of the objective of a job that runs, in order; the n-th is that of its n-th epoch.
        ended: the same of training jobs that completed.
    """
    averages = [
        statistics.fmean(one[: len(values)]) for one in ended if values and len(one) >= len(values)
    ]
    if len(averages) < MEDIAN_OF:
        return False
    median = statistics.median(averages)
    return values[-1] > median if minimise else values[-1] < median
