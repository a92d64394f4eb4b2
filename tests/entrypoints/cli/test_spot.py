"""Managed spot training: interruptions, restarts on fresh hosts, checkpoints, limits, the bill."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

OK, FAILED, REFUSED, STOPPED = 0, 1, 2, 3

# Counts to ten, a step at a time, and goes on where the checkpoint says.
COUNT = """
import os, pathlib, signal, sys, time
here = pathlib.Path("/opt/ml/checkpoints")
here.mkdir(exist_ok=True)
found = sorted(int(p.name) for p in here.glob("[0-9]*") if p.name.isdecimal())
start = found[-1] + 1 if found else 0
print("starts at", start, "with", sorted(os.listdir("/opt/ml/model")), flush=True)
open("/opt/ml/model/from-%d" % start, "w").close()
for step in range(start, 10):
    (here / ".part").write_text(str(step))
    (here / ".part").rename(here / str(step))
    print("step", step, flush=True)
    time.sleep(0.3)
"""
SPOT = ("--use-spot", "--max-run", "100", "--max-wait", "200")


def steps(log: str) -> list[int]:
    return [int(line.split()[1]) for line in log.splitlines() if line.startswith("step ")]


def test_a_rehearsed_interruption_resumes_on_a_fresh_host(hotfire: Any) -> None:
    hotfire.script(COUNT)
    result = hotfire(
        *("run", "train.py", "--name", "spot", "--json", "--output", "out"),
        *(*SPOT, "--checkpoint-s3-uri", "kept", "--interrupt-after", "step 4"),
    )
    assert result.returncode == OK, result.stderr
    described = json.loads(result.stdout)
    visited = [visit["Status"] for visit in described["SecondaryStatusTransitions"]]
    attempt = ["Starting", "Downloading", "Training"]
    assert visited == [*attempt, "Interrupted", *attempt, "Uploading", "Completed"]
    assert described["BillableTimeInSeconds"] < described["TrainingTimeInSeconds"]
    first = hotfire("logs", "spot", "--attempt", "1").stdout
    last = hotfire("logs", "spot", "--attempt", "2").stdout
    assert "starts at 0 with []" in first
    assert steps(first)[-1] in (4, 5)
    # Model and output are not kept over an interruption; checkpoints are (contract 5.8).
    assert f"starts at {steps(first)[-1] + 1} with []" in last
    assert steps(last)[-1] == 9
    with tarfile.open(hotfire.cwd / "out/spot/output/model.tar.gz") as archive:
        assert archive.getnames() == [f"from-{steps(last)[0]}"]
    kept = {path.name for path in (hotfire.cwd / "kept").iterdir()}
    assert {str(step) for step in range(10)} <= kept
    training, billable = described["TrainingTimeInSeconds"], described["BillableTimeInSeconds"]
    shown = [line.strip() for line in hotfire("describe", "spot").stdout.splitlines()]
    assert {
        f"Training seconds: {training}",
        f"Billable seconds: {billable}",
        f"Managed Spot Training savings: {(1 - billable / training) * 100:.1f}%",
        "(assumed: --spot-discount 0.7; the bill's rule is the provider's)",
    } <= set(shown)
    # As the SDK shows a job: every message of a status, in order.
    told = re.findall(r"^[-0-9]+ [:0-9]+ (.*)$", result.stderr, re.MULTILINE)
    begins = [
        "Starting - Starting the training job",
        "Starting - Preparing the instances for training",
    ]
    assert told[:2] == begins
    assert told[told.index("Interrupted - The training job was interrupted") + 1 :][:2] == begins


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--interrupt-after", "2s"), "managed spot training only"),
        ((*SPOT, "--interrupt-after", " "), "--interrupt-after is empty"),
    ],
)
def test_an_interruption_that_could_not_happen_is_refused(
    hotfire: Any, words: tuple[str, ...], said: str
) -> None:
    hotfire.script("print('ran')\n")
    refused = hotfire("run", "train.py", "--name", "never", *words)
    assert (refused.returncode, refused.stdout) == (REFUSED, "")
    assert said in refused.stderr
    assert hotfire("describe", "never").returncode == REFUSED


@pytest.mark.parametrize("how", [("--notice", "5"), ("--abrupt",)])
def test_an_interruption_from_another_terminal(
    hotfire: Any,
    how: tuple[str, ...],
    eventually: Callable[[Callable[[], object]], None],
    traces: Callable[[Path], list[str]],
) -> None:
    hotfire.script(COUNT)
    words = ("run", "train.py", "--name", "far", "--instance-count", "2", "--detach")
    assert hotfire(*words, *SPOT).returncode == OK
    eventually(lambda: "step 1" in hotfire("logs", "far").stdout)
    follower = hotfire.start("logs", "-f", "far", "--json", "--host", "algo-2")
    assert hotfire("interrupt", "far", *how).returncode == OK
    assert hotfire("wait", "far").returncode == OK
    followed = [json.loads(line) for line in follower.communicate(timeout=60)[0].splitlines()]
    assert {line["host"] for line in followed} == {"algo-2"}
    assert [line["attempt"] for line in followed if line["message"] == "step 0"] == [1, 2]
    moments = [line["timestamp"] for line in followed]
    assert moments == sorted(moments) and len(set(moments)) > 5
    visited = [visit["Status"] for visit in hotfire.describe("far")["SecondaryStatusTransitions"]]
    assert visited.count("Interrupted") == 1
    # Without CheckpointConfig nothing is kept.
    assert "starts at 0 with []" in hotfire("logs", "far", "--host", "algo-2").stdout
    assert hotfire("interrupt", "far").returncode == REFUSED
    eventually(lambda: traces(hotfire.home) == [])


# One checkpoint is closed; another one is written to until the end, so that only a last upload could store it.
GROW = """
import os, time
print("finds", sorted(n for n in os.listdir("/opt/ml/checkpoints") if n[0] != "."), flush=True)
if not os.path.exists("/opt/ml/checkpoints/closed"):
    open("/opt/ml/checkpoints/closed", "w").close()
    with open("/opt/ml/checkpoints/open", "w") as out:
        while True:
            print("growing", file=out, flush=True)
            time.sleep(0.05)
"""


@pytest.mark.parametrize("how", ["--notice", "--abrupt"])
def test_an_abrupt_loss_takes_what_was_not_uploaded(
    hotfire: Any, how: str, eventually: Callable[[Callable[[], object]], None]
) -> None:
    hotfire.script(GROW)
    words = ("run", "train.py", "--name", "lost", "--checkpoint-s3-uri", "kept", "--detach")
    assert hotfire(*words, *SPOT).returncode == OK
    eventually((hotfire.cwd / "kept" / "closed").exists)
    assert not (hotfire.cwd / "kept" / "open").exists()
    notice = ("--abrupt",) if how == "--abrupt" else ("--notice", "1")
    assert hotfire("interrupt", "lost", *notice).returncode == OK
    assert hotfire("wait", "lost").returncode == OK
    restored = ["closed"] if how == "--abrupt" else ["closed", "open"]
    assert f"finds {restored}" in hotfire("logs", "lost").stdout


def test_the_limits_are_shared_by_all_attempts(hotfire: Any) -> None:
    hotfire.script("import time\nprint('step 0', flush=True)\ntime.sleep(100)\n")
    result = hotfire(
        *("run", "train.py", "--name", "short", "--use-spot", "--max-run", "3", "--max-wait", "60"),
        *("--interrupt-after", "2s"),
    )
    assert result.returncode == STOPPED
    described = hotfire.describe("short")
    assert described["SecondaryStatus"] == "MaxRuntimeExceeded"
    assert described["TrainingTimeInSeconds"] < 10


def test_spot_without_a_wait_limit_is_refused(hotfire: Any) -> None:
    hotfire.script("pass")
    result = hotfire("run", "train.py", "--use-spot")
    assert result.returncode == REFUSED
    assert "MaxWaitTimeInSeconds" in result.stderr


def test_an_on_demand_job_is_never_interrupted(hotfire: Any) -> None:
    hotfire.script("import time\ntime.sleep(20)\n")
    assert hotfire("run", "train.py", "--name", "steady", "--detach").returncode == OK
    refused = hotfire("interrupt", "steady")
    assert refused.returncode == REFUSED
    assert "--use-spot" in refused.stderr
    assert hotfire("stop", "steady").returncode == OK
    assert hotfire("wait", "steady").returncode == STOPPED


def test_checkpoints_outside_opt_ml_and_retry(hotfire: Any) -> None:
    hotfire.script(COUNT.replace("/opt/ml/checkpoints", "/state").replace("sleep(0.3)", "sleep(0)"))
    words = ("run", "train.py", "--name", "first", "--checkpoint-s3-uri", "kept")
    assert hotfire(*words, "--checkpoint-local-path", "/state").returncode == OK
    again = hotfire("retry", "first")
    assert again.returncode == OK, again.stderr
    assert "starts at 10" in again.stdout
    assert hotfire.describe("first-2")["TrainingJobStatus"] == "Completed"
