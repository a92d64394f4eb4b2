"""Detached jobs: supervised by processes of their own, reachable from any terminal."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

OK, FAILED, REFUSED, STOPPED = 0, 1, 2, 3

Eventually = Callable[[Callable[[], object]], None]


def test_a_detached_job_is_followed_and_stopped_from_elsewhere(
    hotfire: Any, eventually: Eventually, traces: Callable[[Path], list[str]]
) -> None:
    hotfire.script("import time\nprint('training', flush=True)\ntime.sleep(100)\n")
    created = hotfire("run", "train.py", "--name", "far", "--detach")
    assert (created.returncode, created.stdout) == (OK, "far\n"), created.stderr
    eventually(lambda: "training" in hotfire("logs", "far").stdout)
    assert hotfire.describe("far")["TrainingJobStatus"] == "InProgress"
    follower = hotfire.start("logs", "-f", "far")
    assert hotfire("delete", "far").returncode == REFUSED
    assert hotfire("run", "train.py", "--name", "far", "--replace").returncode == REFUSED
    assert hotfire("stop", "far").returncode == OK
    waited = hotfire("wait", "far")
    assert (waited.returncode, waited.stderr) == (STOPPED, "far: Stopped\n")
    stdout, _ = follower.communicate(timeout=60)
    assert "training\n" in stdout
    eventually(lambda: traces(hotfire.home) == [])


def test_fifty_at_once_all_end_truthfully(
    hotfire: Any, eventually: Eventually, traces: Callable[[Path], list[str]]
) -> None:
    hotfire.script("import os, sys\nsys.exit(int(os.environ['SM_HP_CODE']))\n")
    for number in range(50):
        words = ("run", "train.py", "--name", f"job-{number}", "-p", f"code={number % 2}")
        assert hotfire(*words, "--detach").returncode == OK
    codes = [hotfire("wait", f"job-{number}").returncode for number in range(50)]
    assert codes == [number % 2 for number in range(50)]
    listed = json.loads(hotfire("ps", "--json").stdout)["TrainingJobSummaries"]
    assert len(listed) == 50
    eventually(lambda: traces(hotfire.home) == [])


def test_a_killed_supervisor_leaves_the_truth(
    hotfire: Any,
    eventually: Eventually,
    traces: Callable[[Path], list[str]],
    supervisors: Callable[[], list[int]],
) -> None:
    hotfire.script("import time\nprint('training', flush=True)\ntime.sleep(100)\n")
    assert hotfire("run", "train.py", "--name", "gone", "--detach").returncode == OK
    eventually(lambda: "training" in hotfire("logs", "gone").stdout)
    (supervisor,) = supervisors()
    os.kill(supervisor, signal.SIGKILL)
    waited = hotfire("wait", "gone")
    assert waited.returncode == FAILED
    assert hotfire.describe("gone")["FailureReason"].startswith("InternalServerError: ")
    eventually(lambda: traces(hotfire.home) == [])


def test_a_job_with_a_retry_strategy_outlives_its_supervisor(
    hotfire: Any,
    eventually: Eventually,
    traces: Callable[[Path], list[str]],
    supervisors: Callable[[], list[int]],
) -> None:
    """The second attempt, of another supervisor, finds the checkpoint of the first and ends."""
    hotfire.script(
        "import os, time\n"
        "mark = '/opt/ml/checkpoints/mark'\n"
        "if os.path.exists(mark): print('resumed'); raise SystemExit\n"
        "open(mark, 'w').close()\n"
        "print('training', flush=True)\ntime.sleep(100)\n"
    )
    hotfire.retried("again")
    created = hotfire("run", "job.json", "--source-dir", ".", "--detach")
    assert created.returncode == OK, created.stderr
    eventually((hotfire.cwd / "kept" / "mark").exists)
    (supervisor,) = supervisors()
    os.kill(supervisor, signal.SIGKILL)
    assert hotfire("wait", "again").returncode == OK
    visited = [one["Status"] for one in hotfire.describe("again")["SecondaryStatusTransitions"]]
    attempt = ["Starting", "Downloading", "Training"]
    assert visited == [*attempt, "Restarting", *attempt, "Uploading", "Completed"]
    assert "resumed" in hotfire("logs", "again").stdout
    eventually(lambda: traces(hotfire.home) == [])


def test_data_that_vanishes_before_the_supervisor_looks_fails_the_job(hotfire: Any) -> None:
    (hotfire.cwd / "d").mkdir()
    (hotfire.cwd / "d" / "x").write_text("1")
    hotfire.script("pass")
    # The supervisor's interpreter waits for the data to be gone before it prepares.
    site = hotfire.cwd / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "while 'supervisor' in ' '.join(sys.orig_argv) and os.path.exists(os.environ['GONE']):\n"
        "    time.sleep(0.02)\n"
    )
    path = f"{site}{os.pathsep}{hotfire.env['PYTHONPATH']}"
    gone = str(hotfire.cwd / "d")
    words = ("run", "train.py", "--name", "late", "--input", "train=d", "--detach")
    assert hotfire(*words, PYTHONPATH=path, GONE=gone).returncode == OK
    (hotfire.cwd / "d").rename(hotfire.cwd / "elsewhere")
    assert hotfire("wait", "late").returncode == FAILED
    assert "does not exist" in hotfire.describe("late")["FailureReason"]


def test_a_torn_record_hides_no_other_job_and_can_be_deleted(hotfire: Any) -> None:
    hotfire.script("pass")
    for name in ("good", "torn"):
        assert hotfire("run", "train.py", "--name", name).returncode == OK
    (hotfire.home / "jobs" / "torn" / "record.json").write_text('{"name": "torn", "visi')
    listed = json.loads(hotfire("ps", "--json").stdout)["TrainingJobSummaries"]
    status = {one["TrainingJobName"]: one["TrainingJobStatus"] for one in listed}
    assert status == {"good": "Completed", "torn": "Failed"}
    assert "hotfire delete torn" in hotfire("describe", "torn").stderr
    assert hotfire("delete", "--older-than", "0s").returncode == OK
    assert json.loads(hotfire("ps", "--json").stdout)["TrainingJobSummaries"] == []
