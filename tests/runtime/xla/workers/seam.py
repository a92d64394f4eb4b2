"""One small training per compiler of argv[2:], all from the same weights; a report to argv[1].

XLA has to come first: the engine of autograd counts the kinds of devices at the first backward.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from small_task import SmallNet, rows

from hotfire.runtime.xla.device import open_device
from hotfire.runtime.xla.loop import Loop, LoopConfig

CONFIG = LoopConfig(
    learning_rate=1e-2,
    max_train_steps=6,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    logging_steps=1,
)


class RecordingLoop(Loop):
    def report(self, step: int, loss: float) -> None:
        self.losses = [*getattr(self, "losses", []), loss]


def main() -> None:
    reports = {}
    for compiler in sys.argv[2:]:
        torch.manual_seed(3)
        # Left open: closing would take the process groups away from the next.
        loop = RecordingLoop(open_device(compiler), SmallNet(), rows(64), CONFIG)
        loop.train()
        weights = torch.cat([p.detach().flatten() for p in loop.model.parameters()]).cpu()
        reports[compiler] = {
            "device": loop.env.device.type,
            "losses": loop.losses,
            "weights": weights.tolist(),
            "evaluation": loop.evaluate(rows(21, seed=1)),
        }
    dynamo = sys.modules.get("torch._dynamo.utils")
    graphs = dynamo.counters["stats"]["unique_graphs"] if dynamo else 0
    Path(sys.argv[1]).write_text(json.dumps({"reports": reports, "graphs": graphs}))


if __name__ == "__main__":
    main()
