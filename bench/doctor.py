"""What watching costs: the step of a small BERT below the launcher, without the doctor, with its summary, examined.

Processes alternate; a step's time is the median of those after the compilations, a case's the smallest of its rounds,
since what else the machine does only adds. Beside it the processor time of the script's own thread, which a busy machine
hardly changes: the difference, as a share of the step, is what watching costs. Limit: 1.05 times the step without it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 40
CASES = {
    "without": {"HOTFIRE_SHIMS": "-doctor"},
    "summary": {},
    "doctor": {"HOTFIRE_DOCTOR": str(STEPS)},
}


def train(report: Path) -> None:
    """The watched script: seconds of each step, and of its thread, into `report` at every step."""
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
    seconds: list[tuple[float, float]] = []
    for _ in range(STEPS):
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
        seconds.append((time.perf_counter() - started, time.thread_time() - computed))
        report.write_text(json.dumps(seconds))


def step_seconds(environment: dict[str, str]) -> tuple[float, float]:
    """Of the step, and of the script's thread in it."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "seconds.json"
        command = [sys.executable, "-m", "hotfire.runtime.xla.exec", __file__, "--train", report]
        settings = {"PJRT_DEVICE": "CPU", "SM_OUTPUT_DATA_DIR": directory, "TMPDIR": directory}
        env = {**os.environ, **settings, **environment}
        subprocess.run(command, env=env, check=True, capture_output=True)
        steps = json.loads(report.read_text())[8 : STEPS - 1]
        wall, thread = zip(*steps, strict=True)
        return statistics.median(wall), statistics.median(thread)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.train)
        return
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for _ in range(args.rounds):
        for name, environment in CASES.items():
            rounds[name].append(step_seconds(environment))
    step = {name: min(wall for wall, _ in found) for name, found in rounds.items()}
    thread = {name: min(own for _, own in found) for name, found in rounds.items()}
    ratios = {name: step[name] / step["without"] for name in ("summary", "doctor")}
    shares = {name: (thread[name] - thread["without"]) / step["without"] for name in ratios}
    figures = {
        name: {"step": round(ratios[name], 3), "of_the_step": round(shares[name], 4)}
        for name in ratios
    }
    print(json.dumps({"seconds_without": round(step["without"], 4), **figures}))


if __name__ == "__main__":
    main()
