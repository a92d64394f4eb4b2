"""A script as people write them for SageMaker: it reads a channel and hyperparameters, and leaves a model."""

import argparse
import csv
import json
import os
from collections import Counter
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--smoothing", type=float, default=1.0)
parser.add_argument("--train", default=os.environ.get("SM_CHANNEL_TRAIN"))
parser.add_argument("--test", default=os.environ.get("SM_CHANNEL_TEST"))
parser.add_argument("--model-dir", default=os.environ.get("SM_MODEL_DIR"))
args = parser.parse_args()


def rows(channel: str) -> list[tuple[list[str], str]]:
    found = []
    for path in sorted(Path(channel).glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as source:
            found += [(row["text"].split(), row["label"]) for row in csv.DictReader(source)]
    return found


# Naive Bayes without the prior: enough to see data come in and a model go out.
train, test = rows(args.train), rows(args.test)
counts: dict[str, Counter[str]] = {}
for words, label in train:
    counts.setdefault(label, Counter()).update(words)
vocabulary = {word for counter in counts.values() for word in counter}


def score(words: list[str], label: str) -> float:
    total = sum(counts[label].values()) + args.smoothing * len(vocabulary)
    result = 1.0
    for word in words:
        result *= (counts[label][word] + args.smoothing) / total * 1000
    return result


right = sum(max(counts, key=lambda label: score(words, label)) == truth for words, truth in test)
print(f"accuracy = {right / len(test):.3f} on {len(test)} rows, trained on {len(train)}")
Path(args.model_dir, "counts.json").write_text(json.dumps(counts), encoding="utf-8")
