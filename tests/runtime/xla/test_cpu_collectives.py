"""Collectives of XLA tensors between CPU processes: right values, or a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.xla, pytest.mark.slow]


@pytest.fixture(scope="module")
def report(
    launch: Callable[..., Any], workers: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("collectives") / "report.json"
    [done] = launch(str(workers / "collectives.py"), str(out), processes=2)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_xm_collectives_have_the_values_of_two_ranks(report: dict[str, Any]) -> None:
    assert report["xm"] == {
        "sum_list": [[1.5, 2.5], [5]],  # (1 + 2) / 2, (2 + 3) / 2; 11 // 2
        "max": [4.0],
        "min_bool": [False],
        "bfloat16": [[512.0], "torch.bfloat16"],
        "gather": [1.0, 2.0, 2.0, 3.0],
        "gather_dim1": [[1.0, 2.0, 2.0, 3.0]],
        "broadcast_from_1": [[8.0], [9.0, 10.0]],
        "reduce_scatter": [1.0, 21.0, 41.0, 61.0],
        "rendezvous": ["from 0", "from 1"],
        "rendezvous_empty": ["", ""],
        "mesh_reduce": 3,
        "whole_world_as_group": [3.0],
        "runtime": [2, 2, 2],
        "ordinals": [[0, 0], [1, 1]],
        "master": [True, False],
        "spawned": [[0, 5], [1, 5]],
    }


def test_c10d_collectives_have_the_values_of_two_ranks(report: dict[str, Any]) -> None:
    assert report["c10d"] == {
        "backend": "xla",
        "mean": [1.5],
        "reduce": [3.0, 2.0],
        "all_gather": [1.0, 2.0],
        "all_gather_into_tensor": [1.0, 2.0, 2.0, 3.0],
        "reduce_scatter_tensor": [3.0, 5.0],
        "broadcast_object": [{"rank": 0}],
        "subgroup_of_one": [4.0],
    }


def test_what_is_not_emulated_raises_and_says_so(report: dict[str, Any]) -> None:
    for name, outcome in report["refused"].items():
        assert outcome.startswith("NotImplementedError: "), (name, outcome)
        assert "not emulated on CPU processes" in outcome
