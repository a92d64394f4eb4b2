"""What watching costs: the step of a small BERT below the launcher, without the doctor, with its summary, examined.

Processes alternate; a step's time is the median of those after the compilations, a case's the smallest of its rounds,
since what else the machine does only adds. Limit: 1.05 times the step without the doctor.
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

LIMIT = 1.05
STEPS = 40
CASES = {
    "without": {"HOTFIRE_SHIMS": "-doctor"},
    "summary": {},
    "doctor": {"HOTFIRE_DOCTOR": str(STEPS)},
}


def train(report: Path) -> None:
    """The watched script: seconds of each step into `report`, rewritten at every step."""
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
    seconds: list[float] = []
    for _ in range(STEPS):
        started = time.perf_counter()
        batch = {
            "input_ids": torch.randint(0, 8000, (8, 64)).to(device),
            "attention_mask": torch.ones(8, 64, dtype=torch.long).to(device),
            "labels": torch.randint(0, 2, (8,)).to(device),
        }
        optimizer.zero_grad()
        model(**batch).loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        xm.wait_device_ops()
        seconds.append(time.perf_counter() - started)
        report.write_text(json.dumps(seconds))


def step_seconds(environment: dict[str, str]) -> float:
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "seconds.json"
        command = [sys.executable, "-m", "hotfire.runtime.xla.exec", __file__, "--train", report]
        settings = {"PJRT_DEVICE": "CPU", "SM_OUTPUT_DATA_DIR": directory, "TMPDIR": directory}
        env = {**os.environ, **settings, **environment}
        subprocess.run(command, env=env, check=True, capture_output=True)
        return statistics.median(json.loads(report.read_text())[8 : STEPS - 1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.train)
        return 0
    best = dict.fromkeys(CASES, float("inf"))
    for _ in range(args.rounds):
        for name, environment in CASES.items():
            best[name] = min(best[name], step_seconds(environment))
    ratios = {name: best[name] / best["without"] for name in ("summary", "doctor")}
    for name, ratio in ratios.items():
        print(f"{name}: {best[name]:.4f} s a step, {ratio:.3f} of {best['without']:.4f} s")
    if args.json:
        args.json.write_text(json.dumps({"seconds": best, "ratios": ratios, "limit": LIMIT}))
    return 0 if max(ratios.values()) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
