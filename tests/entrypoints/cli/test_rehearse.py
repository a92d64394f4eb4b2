"""``--rehearse``: the service's troubles, as ``hotfire run`` and DescribeTrainingJob tell them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

OK, FAILED, REFUSED, STOPPED = 0, 1, 2, 3
SPOT = ("--use-spot", "--max-run", "100", "--max-wait", "200")


@pytest.fixture
def script(hotfire: Any) -> Path:
    """Leaves a trace where it ran."""
    made: Path = hotfire.script("print('it ran')")
    return made


def messages(described: dict[str, Any]) -> list[tuple[str, str]]:
    visits = described["SecondaryStatusTransitions"]
    return [(visit["Status"], visit["StatusMessage"]) for visit in visits]


def test_no_capacity(hotfire: Any, script: Path) -> None:
    words = ("run", script.name, "--name", "none", "--rehearse", "capacity", "--json")
    result = hotfire(*words)
    assert result.returncode == FAILED
    assert "Insufficient capacity error from EC2" in result.stderr
    described = json.loads(result.stdout)
    assert described["FailureReason"].startswith("CapacityError: Unable to provision requested ML")
    assert [status for status, _ in messages(described)] == ["Starting", "Failed"]
    assert "TrainingStartTime" not in described and "BillableTimeInSeconds" not in described
    again = hotfire("retry", "none")
    assert (again.returncode, "it ran" in again.stdout) == (OK, True), "a retry meets no trouble"


def test_no_spot_capacity_in_time(hotfire: Any, script: Path) -> None:
    result = hotfire("run", script.name, *SPOT, "--rehearse", "capacity", "--json")
    assert result.returncode == STOPPED
    described = json.loads(result.stdout)
    assert [status for status, _ in messages(described)] == [
        "Starting",
        "Stopping",
        "MaxWaitTimeExceeded",
    ]


def test_no_quota_is_refused_and_leaves_no_job(hotfire: Any, script: Path) -> None:
    words = ("run", script.name, "--instance-type", "ml.trn1.2xlarge", "--rehearse", "quota")
    for more in ((), ("--detach",)):
        result = hotfire(*words, *more)
        assert (result.returncode, result.stdout) == (REFUSED, "")
        assert "'ml.trn1.2xlarge for training job usage' is 0 Instances" in result.stderr
    assert json.loads(hotfire("ps", "--json").stdout)["TrainingJobSummaries"] == []


def test_a_download_that_fails(hotfire: Any, script: Path) -> None:
    (hotfire.cwd / "d").mkdir()
    (hotfire.cwd / "d" / "x").write_text("1")
    words = ("run", script.name, "--name", "d", "--input", "train=d", "--detach")
    assert hotfire(*words, "--rehearse", "download-error").returncode == OK
    assert hotfire("wait", "d").returncode == FAILED
    described = hotfire.describe("d")
    assert described["FailureReason"].startswith("ClientError: Data download failed:AccessDenied")
    assert described["TrainingTimeInSeconds"] >= 1
    assert messages(described)[-2:] == [
        ("Downloading", "Downloading input data"),
        ("Failed", "Training job failed"),
    ]


def test_an_unhealthy_host_is_replaced(hotfire: Any, script: Path) -> None:
    result = hotfire("run", script.name, "--rehearse", "unhealthy-host")
    assert result.returncode == OK, result.stderr
    assert "Launched instance was unhealthy, replacing it!" in result.stderr
    assert "it ran" in result.stdout
