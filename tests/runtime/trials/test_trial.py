"""How a trial's end is understood, and what is asked of the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.trials.trial import Trial, Verdict, as_request, judge

REQUEST = {
    "TrainingJobName": "mine",
    "HyperParameters": {"batch_size": '"auto"', "sagemaker_job_name": '"mine"'},
    "Environment": {"HOTFIRE_COMPILER": "inductor", "MINE": "1"},
    "CheckpointConfig": {"S3Uri": "s3://bucket/checkpoints"},
    "EnableManagedSpotTraining": True,
}


def trial(**more: Any) -> Trial:
    return Trial(**{"request": REQUEST, "label": "t", "compiler": "xla", "steps": 3, **more})


def record(**more: Any) -> dict[str, Any]:
    return {"ended": "steps", "steps": [1, 2, 3], "peak_host_bytes": 100, **more}


@pytest.mark.parametrize(
    ("records", "codes", "text", "verdict"),
    [
        ([record()], {0}, "", Verdict.FITS),
        ([record(), record(steps=[1], ended="exit")], {0}, "", Verdict.DATA),
        ([record(ended="memory", steps=[])], {137}, "", Verdict.MEMORY),
        ([], {137}, "", Verdict.MEMORY),
        ([], {1}, "numpy.core.MemoryError: Unable to allocate 9 GiB", Verdict.MEMORY),
        ([], {1}, "terminate called after throwing 'std::bad_alloc'", Verdict.MEMORY),
        ([], {1}, "RESOURCE_EXHAUSTED: Out of memory while trying to", Verdict.MEMORY),
        ([], {1}, "torch.OutOfMemoryError: CUDA out of memory. Tried", Verdict.MEMORY),
        ([], {1}, "DefaultCPUAllocator: can't allocate memory", Verdict.MEMORY),
        ([record(peak_host_bytes=2001)], {0}, "", Verdict.MEMORY),
        ([record(steps=[])], {1}, "ValueError: no such column", None),
        ([], {0}, "", None),
    ],
)
def test_only_what_speaks_of_memory_does_not_fit(
    records: list[dict[str, Any]], codes: set[int], text: str, verdict: Verdict | None
) -> None:
    assert judge(trial(memory_limit=2000), records, codes, text) is verdict


def test_a_trial_is_the_job_with_other_values_and_without_what_outlives_it() -> None:
    asked = as_request(
        trial(hyperparameters={"batch_size": 24}, memory_limit=5), "trial-1", Path("/tmp/out")
    )
    assert asked["TrainingJobName"] == "trial-1"
    assert asked["HyperParameters"] == {
        "batch_size": "24",
        "sagemaker_job_name": json.dumps("trial-1"),
    }
    assert asked["Environment"] == {
        "MINE": "1",
        "HOTFIRE_COMPILER": "xla",
        "HOTFIRE_MEASURE_STEPS": "3",
        "HOTFIRE_MEMORY_LIMIT": "5",
    }
    assert asked["OutputDataConfig"] == {"S3OutputPath": "file:///tmp/out"}
    assert not {"CheckpointConfig", "EnableManagedSpotTraining"} & set(asked)
    assert REQUEST["HyperParameters"]["batch_size"] == '"auto"'  # type: ignore[index]
