"""The main job, shown: emulate ml.trn1.2xlarge, train a small BERT from scratch on both NeuronCores, use the model.

The corpus is synthetic (see README.md here) and ships with the repository, so nothing is downloaded.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
OUT = ROOT / "hotfire-out"
NAME = "demo"
SENTENCES = (
    "the plot was dull , but the acting was brilliant .",
    "the music was not charming .",
)

JOB = [
    *("run", "--name", NAME, "--replace"),
    *("--input", "train=examples/demo/data/train", "--input", "test=examples/demo/data/test"),
    *("--instance-type", "ml.trn1.2xlarge", "--output", "hotfire-out"),
    *("-p", "model_name_or_path=tiny-bert", "-p", "max_length=32", "-p", "num_train_epochs=8"),
    *("-p", "learning_rate=5e-4", "-p", "per_device_train_batch_size=8", "-p", "warmup_ratio=0.1"),
    *("-p", "logging_steps=50"),
]


def show(argv: list[str], words: list[str]) -> None:
    print(f"$ {shlex.join(words)}", flush=True)
    subprocess.run(argv, cwd=ROOT, check=True)


def main() -> None:
    start = time.monotonic()
    show([sys.executable, "-m", "hotfire.entrypoints", *JOB], ["hotfire", *JOB])
    model = f"hotfire-out/{NAME}/output/model.tar.gz"
    classify = ["-m", "hotfire.entrypoints.programs.classify", model, *SENTENCES]
    print()
    show([sys.executable, *classify], ["python", *classify])
    print(f"\nThe demo took {time.monotonic() - start:.0f} seconds.")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
