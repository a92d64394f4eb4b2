"""What a job without the doctor says at its end, and that the doctor leaves a script as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.xla, pytest.mark.slow]

LOSSES = """
import torch
import torch_xla
import torch_xla.core.xla_model as xm

torch.manual_seed(0)
device = torch_xla.device()
model = torch.nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16).to(device)).square().mean()
    loss.backward()
    xm.optimizer_step(optimizer, barrier=True)
    losses.append(loss.detach())
print("LOSSES", torch.stack(losses).tolist())
"""


def test_a_clean_job_says_so_in_one_line(examine: Callable[..., Any]) -> None:
    outcome = examine("clean_loader", steps=0)
    assert outcome.codes == [0]
    lines = [line for line in outcome.log.splitlines() if line.startswith("hotfire: XLA: ")]
    assert len(lines) == 1
    assert lines[0].endswith("in 36 steps; findings: none"), "all epochs, and not cut short"


@pytest.mark.parametrize("name", ["item_every_step", "drift_plain_step"])
def test_findings_come_with_their_lines(examine: Callable[..., Any], name: str) -> None:
    """From one process, and from two, whose parameters rank 0 compares."""
    outcome = examine(name, steps=0)
    assert outcome.codes[0] == 0
    [line] = [line for line in outcome.log.splitlines() if line.startswith("hotfire:   ")]
    rule = {"item_every_step": "explicit-evaluation", "drift_plain_step": "replica-drift"}[name]
    assert f"[{rule}]" in line
    assert f"{name}.py:" in line


def test_watching_changes_no_number(examine: Callable[..., Any], tmp_path: Path) -> None:
    logs = [
        examine("losses", LOSSES, steps=steps, **extra).log
        for steps, extra in ((0, {}), (50, {}), (0, {"shims": "-doctor"}))
    ]
    lines = [[line for line in log.splitlines() if line.startswith("LOSSES")] for log in logs]
    seen = {line for found in lines for line in found}
    assert len(seen) == 1, "the same losses with a summary, with the doctor, and without either"
    assert [len(found) for found in lines] == [1, 2, 3], "one log, which grew"
    assert "findings" not in logs[2].rpartition("LOSSES")[2]


def test_the_doctor_ends_an_endless_script(examine: Callable[..., Any]) -> None:
    outcome = examine("endless", LOSSES.replace("range(6)", "iter(int, 1)"), steps=5)
    assert outcome.codes == [0]
    assert outcome.report.steps == 5
    assert not outcome.report.findings


def test_a_loop_that_asks_for_batches_itself_ends_too(examine: Callable[..., Any]) -> None:
    """`next` in the script: an end of data there might be an error, so the script ends."""
    text = LOSSES.replace("range(6)", "iter(int, 1)").replace(
        "torch.randn(8, 16).to(device)", "next(batches).to(device)"
    )
    loader = "batches = iter(torch.utils.data.DataLoader(torch.randn(800, 16), batch_size=8))\n"
    outcome = examine("asking", text.replace("losses = []\n", f"losses = []\n{loader}"), steps=5)
    assert outcome.codes == [0], outcome.log
    assert outcome.report.steps == 5
