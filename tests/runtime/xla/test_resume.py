"""SIGTERM to one rank stops all at one step with a checkpoint; resuming loses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.xla, pytest.mark.slow]


@pytest.fixture
def train(
    launch: Callable[..., Any], workers: Path, tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    def run(directory: Path | str, stop_at: int, **environment: str) -> dict[str, Any]:
        out = tmp_path / "report.json"
        arguments = str(workers / "resumable.py"), str(out), str(directory), str(stop_at)
        [done] = launch(*arguments, processes=2, **environment)
        assert done.returncode == 0, done.stderr[-4000:]
        report: dict[str, Any] = json.loads(out.read_text())
        return report

    return run


@pytest.mark.parametrize("compiler", ["xla", "none"])
def test_stopped_and_resumed_equals_uninterrupted(
    train: Callable[..., dict[str, Any]], tmp_path: Path, compiler: str
) -> None:
    """Step 8 lies in the second epoch (6 steps each); dropout makes the random states matter."""
    checkpoints = tmp_path / "checkpoints"
    whole = train("", 0, COMPILER=compiler)
    first = train(checkpoints, 8, COMPILER=compiler)
    assert first["stopped"]
    assert first["steps"] == [8, 8]
    assert [p.name for p in checkpoints.iterdir()] == ["checkpoint-00000008.pt"]
    second = train(checkpoints, 0, COMPILER=compiler)
    assert second["steps"] == [14, 14]
    assert not second["stopped"]
    assert first["losses"] | second["losses"] == whole["losses"]
    assert second["losses"].keys() == {str(step) for step in range(9, 15)}
    assert second["train_loss"] == whole["train_loss"]
