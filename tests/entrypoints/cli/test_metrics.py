"""MetricDefinitions from the command line to DescribeTrainingJob."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
from typing import Any


def test_metrics_of_all_hosts_reach_describe_and_the_table(hotfire: Any) -> None:
    hotfire.script(
        "for i in range(5): print(f'step {i} loss = {1 / (i + 1):.3f}; delta = -{i}')\n"
        "print('took = 0:00:14')\n"
    )
    result = hotfire(
        *("run", "train.py", "--name", "measured", "--instance-count", "2", "--json"),
        *("--metric", "loss=loss = ([0-9.]+)", "--metric", r"delta=delta.*=\D*(\d+)"),
        *("--metric", r"took=took = (.*?)$"),
        *("--metric", "never=absent ([0-9])"),
    )
    assert result.returncode == 0, result.stderr
    final = {
        one["MetricName"]: one["Value"] for one in json.loads(result.stdout)["FinalMetricDataList"]
    }
    assert final["loss"] == 0.20000000298023224
    assert "took" not in final
    points = hotfire("metrics", "measured", "--csv").stdout.splitlines()
    assert points[0] == "time,metric,host,value"
    assert len([line for line in points if ",loss,algo-2," in line]) == 5
    table = hotfire("metrics", "measured").stdout
    assert "lost a minus sign" in table
    assert "'0:00:14'" in table
    assert "algo-2: " in table and "of VolumeSizeInGB 30 (100 % unused)" in table
    used = hotfire("metrics", "measured", "--resources").stdout.splitlines()
    assert used[0].startswith("host,time,cpu_percent,memory_bytes,disk_bytes")
    wrote = hotfire("metrics", "measured", "--plot", "m.png", "--tensorboard", "board")
    assert wrote.stderr == "wrote m.png\nwrote board\n"
    assert (hotfire.cwd / "m.png").read_bytes().startswith(b"\x89PNG")
    runs = sorted(path.parent.name for path in hotfire.cwd.glob("board/*/events.out.tfevents.*"))
    assert runs == ["algo-1", "algo-2"]
    assert hotfire("metrics", "measured", "--csv", "--json").returncode == 2
    refused = hotfire("metrics", "measured", "--plot", "no/such/place.png")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "place.png cannot be written" in refused.stderr
    shown = hotfire("describe", "measured").stdout
    assert "  metric     loss = 0.2 (matched 10)\n" in shown
    assert "  metric     took (matched 2, not a number 2 (for example '0:00:14'))\n" in shown
    assert "  metric     never (matched 0)\n" in shown
    assert "of VolumeSizeInGB 30 (100 % unused)" in shown


def test_metrics_are_seen_while_the_job_runs(hotfire: Any, eventually: Any) -> None:
    hotfire.script("import time\nprint('loss = 0.5', flush=True)\ntime.sleep(100)\n")
    words = ("run", "train.py", "--name", "live", "--metric", "loss=loss = ([0-9.]+)", "--detach")
    assert hotfire(*words).returncode == 0
    eventually(lambda: "0.5" in hotfire("metrics", "live").stdout)
    assert "  metric     loss = 0.5 (matched 1)\n" in hotfire("describe", "live").stdout
    assert "loss = 0.5" in json.dumps(hotfire("logs", "live").stdout)
    hotfire("stop", "live")
    assert hotfire("wait", "live").returncode == 3


def test_a_terminal_shows_the_values_as_they_come(hotfire: Any) -> None:
    hotfire.script("for i in range(3): print(f'loss = {i}.5', flush=True)\n")
    main, side = pty.openpty()
    words = ("run", "train.py", "--name", "seen", "--metric", "loss=loss = ([0-9.]+)")
    process = subprocess.Popen(
        hotfire.argv(*words), cwd=hotfire.cwd, env=hotfire.env, stdout=subprocess.PIPE, stderr=side
    )
    os.close(side)
    stdout, _ = process.communicate(timeout=120)
    told = b""
    with contextlib.suppress(OSError):  # how a terminal ends whose last writer has gone
        while more := os.read(main, 65536):
            told += more
    os.close(main)
    assert b"loss = 2.5\n" in stdout and b"metric:" not in stdout
    assert re.search(rb"metric:\S* loss = \d\.5", told), told


def test_a_pattern_that_cannot_run_in_linear_time_needs_the_other_engine(hotfire: Any) -> None:
    hotfire.script("print('loss = 0.25')")
    words = (
        "run",
        "train.py",
        "--name",
        "behind",
        "--metric",
        r"x=(?<=loss = )([0-9.]+)",
        "--json",
    )
    result = hotfire(*words)
    assert result.returncode == 2
    assert "look-behind (?<=...)" in result.stderr and "--regex python" in result.stderr
    (final,) = json.loads(hotfire(*words, "--regex", "python").stdout)["FinalMetricDataList"]
    assert final["Value"] == 0.25


def test_a_pattern_without_a_group_is_warned_about(hotfire: Any) -> None:
    hotfire.script("print('loss = 0.25')")
    result = hotfire("run", "train.py", "--metric", "x=loss = [0-9.]+")
    assert result.returncode == 0
    assert "has no capture group" in result.stderr


def test_a_job_without_metrics_says_so(hotfire: Any) -> None:
    hotfire.script("pass")
    assert hotfire("run", "train.py", "--name", "plain").returncode == 0
    shown = hotfire("metrics", "plain")
    assert (shown.returncode, "no values of metrics" in shown.stderr) == (0, True)
    refused = hotfire("metrics", "plain", "--tensorboard", "board")
    assert refused.returncode == 2
    assert "no values of metrics" in refused.stderr
