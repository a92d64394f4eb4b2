"""The example in the style of Trainium's training scripts runs unmodified, with any workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.xla, pytest.mark.slow]
SCRIPT = Path(__file__).parents[3] / "examples" / "trainium_tutorial" / "train.py"


def test_trainium_tutorial_trains_alike_with_1_2_and_2x2_workers(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    """The same global batch; rows are dealt to ranks, so each step sees the same ones."""
    import torch

    histories, weights = {}, {}
    for processes, nodes in ((1, 1), (2, 1), (2, 2)):
        model_dir = tmp_path / f"{processes}x{nodes}"
        hosts = launch(
            str(SCRIPT),
            processes=processes,
            nodes=nodes,
            always_torchrun=True,
            SM_MODEL_DIR=str(model_dir),
            PYTHONWARNINGS="default",
        )
        for done in hosts:
            assert done.returncode == 0, done.stderr[-4000:]
        report = json.loads((model_dir / "history.json").read_text())
        assert report["world_size"] == processes * nodes
        histories[processes * nodes] = report["history"]
        weights[processes * nodes] = torch.load(model_dir / "checkpoint.pt", weights_only=True)
        assert f"accuracy = {report['history'][-1]['accuracy']:.6g}" in hosts[0].stdout
    for size in (2, 4):
        for found, alone in zip(histories[size], histories[1], strict=True):
            assert found == pytest.approx(alone, rel=1e-4)
        for name, tensor in weights[1].items():
            assert torch.allclose(weights[size][name], tensor, rtol=1e-3, atol=1e-5), name
    assert histories[1][-1]["loss"] < histories[1][0]["loss"]
