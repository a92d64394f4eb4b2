"""Processes of one host add up in each other's memory where they may, and through sockets else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.xla, pytest.mark.slow]


@pytest.mark.parametrize(
    ("layout", "how", "direct"),
    [
        ("2", "allowed", True),
        ("2", "forbidden", False),
        ("2x2", "allowed", False),
        pytest.param("4", "allowed", True, marks=pytest.mark.extended),
        pytest.param("8", "allowed", True, marks=pytest.mark.extended),
    ],
)
def test_sums_have_the_same_bits_on_all_ranks(
    run_layout: Callable[..., list[Any]], tmp_path: Path, layout: str, how: str, direct: bool
) -> None:
    out = tmp_path / "report.json"
    hosts = run_layout("neighbours.py", layout, str(out), how)
    for done in hosts:
        assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(out.read_text())
    assert found["direct"] == direct
    assert found["close"] == [True] * 4
    assert found["same bits"]
    assert found["in place"]
    assert found["last"] == [{"2": 2.0, "2x2": 4.0, "4": 4.0, "8": 8.0}[layout]]
    assert "rank 1 came to all_reduce SUM with float32[500001] as tensor 0" in found["mismatch"]
    said = hosts[0].stderr.count("the ranks may not read each other's memory (Operation not perm")
    assert said == (how == "forbidden")
