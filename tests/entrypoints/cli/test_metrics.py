"""MetricDefinitions from the command line to DescribeTrainingJob."""

from __future__ import annotations

import json
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


def test_a_pattern_that_cannot_run_in_linear_time_is_refused(hotfire: Any) -> None:
    hotfire.script("pass")
    result = hotfire("run", "train.py", "--metric", r"x=(?<=loss = )([0-9.]+)")
    assert result.returncode == 2
    assert "(?<=" in result.stderr or "look" in result.stderr.lower()
