"""Collectives of XLA tensors between CPU processes: one process's values, or an error that names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.xla, pytest.mark.slow]
LAYOUTS = [
    "2",
    "2x2",
    pytest.param("4", marks=pytest.mark.extended),
    pytest.param("8", marks=pytest.mark.extended),
]
Report = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def report(
    run_layout: Callable[..., list[Any]], tmp_path_factory: pytest.TempPathFactory
) -> Report:
    """What `workers/collectives.py` reports per layout; each runs once."""
    reports: dict[str, dict[str, Any]] = {}

    def of(layout: str) -> dict[str, Any]:
        if layout not in reports:
            out = tmp_path_factory.mktemp("collectives") / "report.json"
            for done in run_layout("collectives.py", layout, str(out)):
                assert done.returncode == 0, done.stderr[-4000:]
            reports[layout] = json.loads(out.read_text())
        return reports[layout]

    return of


@pytest.mark.parametrize("layout", LAYOUTS)
def test_collectives_have_the_values_that_one_process_computes(report: Report, layout: str) -> None:
    found = report(layout)
    assert found["wrong"] == []
    assert len(found["done"]) > 80
    assert found["size"] == {"2": 2, "2x2": 4, "4": 4, "8": 8}[layout]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_not_emulated_raises_and_says_so(report: Report, layout: str) -> None:
    for name, outcome in report(layout)["refused"].items():
        assert outcome.startswith("NotImplementedError: "), (name, outcome)
        assert "on CPU processes" in outcome


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_that_come_differently_are_named(report: Report, layout: str) -> None:
    """The group is whole afterwards: the checks run one after the other."""
    found = report(layout)
    last = found["size"] - 1
    expected = {
        "shape": f"rank {last} came to all_reduce SUM with float32[3] as tensor 1",
        "large shape": f"rank {last} came to all_reduce SUM with float32[300001] in place",
        "dtype": f"rank {last} came to all_gather with int32[2] as tensor 0",
        "count": f"rank {last} came to all_reduce SUM with 2 tensors",
        "operation": f"rank {last} called barrier while rank 0 called all_reduce SUM",
        "root": f"rank {last} called broadcast from 1 while rank 0 called broadcast from 0",
        "split": f"rank {last} sends 2 elements to rank 0, which expects 1",
    }
    assert found["mismatched"].keys() == expected.keys()
    for name, text in expected.items():
        outcome = found["mismatched"][name]
        assert outcome.startswith("CollectiveError: rank 0 of "), (name, outcome)
        assert text in outcome
