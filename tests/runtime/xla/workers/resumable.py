"""Train with dropout to STEPS; argv: report file, checkpoint directory or "", step to stop at."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from small_task import SmallNet, rows

from hotfire.runtime.xla.device import open_device
from hotfire.runtime.xla.loop import Loop, LoopConfig

STEPS = 14


class StoppedLoop(Loop):
    """The last rank, and no other, gets SIGTERM while it makes step `stop_at`."""

    stop_at = 0

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.losses: dict[int, float] = {}

    def update(self) -> None:
        super().update()
        if self.step + 1 == self.stop_at and self.env.rank == self.env.world_size - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def report(self, step: int, loss: float) -> None:
        self.losses[step] = loss


def main() -> None:
    out, directory, stop_at = sys.argv[1:]
    with open_device(os.environ.get("COMPILER", "xla")) as env:
        torch.manual_seed(5)
        loop = StoppedLoop(
            env,
            SmallNet(dropout=0.3),
            rows(41),
            LoopConfig(
                learning_rate=1e-2,
                max_train_steps=STEPS,
                per_device_train_batch_size=4,
                logging_steps=1,
                checkpoint_dir=Path(directory) if directory else None,
                keep_checkpoints=2,
            ),
        )
        loop.stop_at = int(stop_at)
        result = loop.train()
        steps = [int(b) for b in env.gather_bytes(str(result.step).encode())]
        if env.is_main:
            report = {
                "losses": loop.losses,
                "steps": steps,
                "stopped": result.stopped,
                "train_loss": result.train_loss,
            }
            Path(out).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
