"""Our training step against a hand-written minimal torch_xla step, side by side in one process.

    python bench/loop.py [--rounds 7] [--steps 20]

Both train copies of one small BERT on the same rows on one XLA device. Rounds alternate which goes
first; each is timed from its first to its last step, with the device idle at both ends. Prints
JSON: medians of seconds per step, and their ratio (target: at most 1.02).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

TARGET = 1.02
BATCH, LENGTH, HIDDEN, LAYERS = 8, 64, 128, 4


def make_model() -> Any:
    """A BERT of a few layers: large enough that a step is arithmetic, small enough to repeat."""
    hf: Any = import_module("transformers")
    config = hf.BertConfig(
        vocab_size=1000,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=4 * HIDDEN,
        max_position_embeddings=LENGTH,
        num_labels=2,
    )
    auto = hf.AutoModelForSequenceClassification
    return auto.from_config(config, attn_implementation="eager").train()


def make_rows(count: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.randint(5, 1000, (count, LENGTH), generator=generator),
        "attention_mask": torch.ones(count, LENGTH, dtype=torch.int64),
        "labels": torch.randint(0, 2, (count,), generator=generator),
    }


def hand_written(model: Any, rows: dict[str, Any], device: Any) -> Callable[[int], float]:
    """The least that trains: no clipping, schedule, logging, checkpoints or stopping."""
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xla.distributed import parallel_loader

    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0)
    loader: Any = parallel_loader.MpDeviceLoader

    def run(steps: int) -> float:
        count = len(rows["labels"])
        batches = [
            {n: t[i % count : i % count + BATCH] for n, t in rows.items()}
            for i in range(0, (steps + 1) * BATCH, BATCH)
        ]
        started = 0.0
        for step, batch in enumerate(loader(batches, device)):
            if step == 1:
                xm.wait_device_ops()
                started = time.perf_counter()
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            xm.optimizer_step(optimizer)
        torch_xla.sync()
        xm.wait_device_ops()
        return (time.perf_counter() - started) / steps

    return run


def ours(model: Any, rows: dict[str, Any], *, features: bool) -> Callable[[int], float]:
    """`Loop` as jobs use it: schedule, step closures, SIGTERM watch; `features` adds clipping."""
    from hotfire.runtime.xla.device import open_device
    from hotfire.runtime.xla.loop import Loop, LoopConfig

    class TimedLoop(Loop):
        started = 0.0
        first = 0

        def loss(self, batch: dict[str, Any]) -> Any:
            if self.step == self.first + 1:
                self.env.sync(wait=True)
                self.started = time.perf_counter()
            return super().loss(batch)

        def report(self, step: int, loss: float) -> None:
            return

    config = LoopConfig(
        max_train_steps=1_000_000,
        per_device_train_batch_size=BATCH,
        max_grad_norm=1.0 if features else 0.0,
        logging_steps=10,
    )
    loop = TimedLoop(open_device("xla"), model, rows, config)

    def run(steps: int) -> float:
        loop.first = loop.step
        loop.total_steps = loop.step + steps + 1
        loop.train()
        loop.env.sync(wait=True)
        return (time.perf_counter() - loop.started) / steps

    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    from hotfire.runtime.xla import shims

    shims.prepare_environment()
    import torch_xla

    rows = make_rows(BATCH * args.steps)
    contestants = {
        "hand_written": hand_written(make_model(), rows, torch_xla.device()),
        "loop": ours(make_model(), rows, features=False),
        "loop_with_clipping": ours(make_model(), rows, features=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run(3)  # compiles
    for round_ in range(args.rounds):
        names = list(contestants)
        for name in names[round_ % 3 :] + names[: round_ % 3]:
            seconds[name].append(contestants[name](args.steps))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    pairs = zip(seconds["loop"], seconds["hand_written"], strict=True)
    ratio = statistics.median(a / b for a, b in pairs)
    report = {
        "bench": "loop",
        "seconds_per_step": medians,
        "ratio": ratio,
        "ratio_with_clipping": medians["loop_with_clipping"] / medians["hand_written"],
        "target": TARGET,
        "rounds": args.rounds,
        "steps": args.steps,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
    }
    print(json.dumps(report, indent=2))
    return 0 if ratio <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
