"""accelerate never calls init_process_group for XLA; its reductions must be real all the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.xla, pytest.mark.slow]


DEFAULTS = {
    "attention": "eager",
    "chosen_attention": "sdpa",
    "optimizer": "adamw_torch",
    "parsed_optimizer": "adamw_torch",
    "chosen_optimizer": "adamw_torch_fused",
}


def test_trainer_over_two_workers_trains_like_one(
    launch: Callable[..., Any], workers: Path, tmp_path: Path
) -> None:
    reports = {}
    for size in (1, 2):
        out = tmp_path / f"{size}.json"
        script = str(workers / "hf_trainer.py")
        [done] = launch(script, str(out), str(size), processes=size)
        assert done.returncode == 0, done.stderr[-4000:]
        reports[size] = json.loads(out.read_text())
        assert reports[size].items() >= DEFAULTS.items()
        for shim in ("hf_optimizer (", "hf_attention ("):
            assert done.stderr.count(shim) == 1, "one line, of rank 0"
    assert [report["world_size"] for report in reports.values()] == [1, 2]
    assert {report["device"] for report in reports.values()} == {"xla"}
    assert reports[2]["loss"] == pytest.approx(reports[1]["loss"], rel=1e-5)


def test_accelerate_over_two_workers_trains_like_one(
    launch: Callable[..., Any], workers: Path, tmp_path: Path
) -> None:
    reports = {}
    for size in (1, 2):
        out = tmp_path / f"{size}.json"
        [done] = launch(str(workers / "accelerated.py"), str(out), str(size), processes=size)
        assert done.returncode == 0, done.stderr[-4000:]
        reports[size] = json.loads(out.read_text())
    assert reports[2]["gathered"] == [0, 1]
    assert reports[2]["device"] == reports[1]["device"] == "xla"
    assert reports[2]["losses"] == pytest.approx(reports[1]["losses"], rel=1e-5)
    assert reports[2]["weights"] == pytest.approx(reports[1]["weights"], rel=1e-4)
