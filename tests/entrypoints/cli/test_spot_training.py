"""The built-in program under managed spot training: interrupted or not, the model is the same."""

from __future__ import annotations

import csv
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.xla, pytest.mark.slow]

SMALL = {
    "model_name_or_path": "tiny-bert",
    "hidden_size": "32",
    "num_hidden_layers": "1",
    "intermediate_size": "64",
    "max_length": "16",
    "seed": "3",
    "compiler": "none",
    "logging_steps": "1",
    "num_train_epochs": "20",
}
STEP = re.compile(r"^step = (\d+)/\d+, (loss = .*)$", re.MULTILINE)


def steps(log: str) -> dict[int, str]:
    return {int(number): text for number, text in STEP.findall(log)}


def weights(path: Path) -> bytes:
    with tarfile.open(path / "output" / "model.tar.gz") as archive:
        member = archive.extractfile("model.safetensors")
        assert member is not None
        return member.read()


def test_an_interrupted_run_ends_equal_to_an_uninterrupted_one(hotfire: Any) -> None:
    (hotfire.cwd / "rows").mkdir()
    with (hotfire.cwd / "rows" / "data.csv").open("w", newline="") as file:
        rows = [(f"a {('kind', 'sour')[i % 2]} film {i % 7}", f"c{i % 2}") for i in range(48)]
        csv.writer(file).writerows([("review", "sentiment"), *rows])
    words = ["run", "--input", "train=rows", "--output", "out", "--processes-per-host", "1"]
    words += [word for key, value in SMALL.items() for word in ("-p", f"{key}={value}")]
    words += ["--use-spot", "--max-run", "600", "--max-wait", "900"]
    words += ["--env", "OMP_NUM_THREADS=1"]
    # Side by side: most of the time goes into imports.
    whole = hotfire.start(*words, "--name", "whole", "--checkpoint-s3-uri", "kept-whole")
    broken = hotfire(
        *(*words, "--name", "broken", "--checkpoint-s3-uri", "kept"),
        *("--interrupt-after", "step = 9/"),
    )
    _, told = whole.communicate(timeout=240)
    assert (whole.returncode, broken.returncode) == (0, 0), told + broken.stderr

    first = steps(hotfire("logs", "broken", "--attempt", "1").stdout)
    second = steps(hotfire("logs", "broken", "--attempt", "2").stdout)
    assert 9 <= max(first) < 120 and min(second) == max(first) + 1, "it went on where it was"
    assert first | second == steps(hotfire("logs", "whole").stdout)
    assert weights(hotfire.cwd / "out" / "broken") == weights(hotfire.cwd / "out" / "whole")
