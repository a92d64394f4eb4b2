"""What watching costs: the step of a small BERT below the launcher, without the doctor, with its summary, examined.

    python bench/doctor.py [--steps 40]

Three processes make their steps in turn, one at a time, so that whatever else the machine does meets all of them alike.
A ratio is the median of those of steps made one after the other, to the step without the doctor. Beside it the processor
time of the script's own thread: its difference, as a share of the step, is what watching costs on a machine with nothing
else to do. Prints JSON. Limit: 1.05 times the step without it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import Any

TARGET = 1.05
WARM_UP = 5
"""Steps left out: the first two compile, and torch's own caches fill."""


def train() -> None:
    """The watched script: a step for each line that comes in; its seconds, and its thread's, go out."""
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    device = torch_xla.device()
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024}
    config = BertConfig(
        vocab_size=8000, num_attention_heads=4, attn_implementation="eager", **sizes
    )
    model = BertForSequenceClassification(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    for _ in sys.stdin:
        started, computed = time.perf_counter(), time.thread_time()
        batch = {
            "input_ids": torch.randint(0, 8000, (8, 64)).to(device),
            "attention_mask": torch.ones(8, 64, dtype=torch.long).to(device),
            "labels": torch.randint(0, 2, (8,)).to(device),
        }
        optimizer.zero_grad()
        model(**batch).loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        xm.wait_device_ops()
        print(time.perf_counter() - started, time.thread_time() - computed, flush=True)


class Trainer:
    """One process that makes a step when asked."""

    def __init__(self, settings: dict[str, str], stack: ExitStack) -> None:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        common = {"PJRT_DEVICE": "CPU", "SM_OUTPUT_DATA_DIR": directory, "TMPDIR": directory}
        command = [sys.executable, "-m", "hotfire.runtime.xla.exec", __file__, "--train"]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **common, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        stack.callback(self._end)

    def step(self) -> tuple[float, float]:
        """Of the step, and of the script's thread in it."""
        pipes: Any = self._process
        pipes.stdin.write("\n")
        pipes.stdin.flush()
        wall, thread = map(float, pipes.stdout.readline().split())
        return wall, thread

    def _end(self) -> None:
        self._process.communicate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train()
        return 0
    load = os.getloadavg()[0]
    cases = {
        "without": {"HOTFIRE_SHIMS": "-doctor"},
        "summary": {},
        "doctor": {"HOTFIRE_DOCTOR": str(WARM_UP + args.steps + 1)},
    }
    with ExitStack() as stack:
        trainers = {name: Trainer(settings, stack) for name, settings in cases.items()}
        turns = [
            {name: trainer.step() for name, trainer in trainers.items()}
            for _ in range(WARM_UP + args.steps)
        ][WARM_UP:]
    without = statistics.median(turn["without"][0] for turn in turns)
    figures: dict[str, Any] = {}
    for name in ("summary", "doctor"):
        figures[name] = {
            "ratio": statistics.median(turn[name][0] / turn["without"][0] for turn in turns),
            "thread_share": statistics.median(turn[name][1] - turn["without"][1] for turn in turns)
            / without,
        }
    report = {
        "bench": "doctor",
        "seconds_per_step": without,
        **figures,
        "target": TARGET,
        "steps": args.steps,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": load,
    }
    print(json.dumps(report, indent=2))
    return 0 if all(figure["ratio"] <= TARGET for figure in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
