"""The corpus that ships with the demo is what its generator writes, and is worth learning."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[3] / "examples" / "demo"


def rows(name: str) -> list[dict[str, str]]:
    with (DEMO / "data" / name / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_shipped_files_are_the_generators(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO / "make_corpus.py"), str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)
    for name in ("train", "test"):
        written = (tmp_path / name / f"{name}.csv").read_bytes()
        assert written == (DEMO / "data" / name / f"{name}.csv").read_bytes()


def test_labels_are_balanced_and_no_test_review_was_trained_on() -> None:
    train, test = rows("train"), rows("test")
    assert (len(train), len(test)) == (1600, 300)
    for part in (train, test):
        positive = sum(row["label"] == "positive" for row in part)
        assert positive * 2 == len(part)
    assert not {row["text"] for row in train} & {row["text"] for row in test}


def test_counting_words_is_not_enough() -> None:
    """The label that most of a review's words have in training is right in fewer than 9 of 10."""
    votes: dict[str, int] = {}
    for row in rows("train"):
        for word in set(row["text"].split()):
            votes[word] = votes.get(word, 0) + (1 if row["label"] == "positive" else -1)
    right = sum(
        (sum(votes.get(word, 0) for word in row["text"].split()) > 0)
        == (row["label"] == "positive")
        for row in rows("test")
    )
    assert 0.5 < right / len(rows("test")) < 0.9
