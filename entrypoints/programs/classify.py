"""Classify sentences with a model that a job produced.

::

    python -m hotfire.entrypoints.programs.classify MODEL SENTENCE ...

MODEL is ``model.tar.gz`` or a directory. One line per sentence: label, probability, sentence.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Classified:
    """A sentence, its most likely label and that label's probability."""

    text: str
    label: str
    probability: float


def classify(model: Path, texts: Sequence[str]) -> list[Classified]:
    """Labels for `texts`, in order, by the model in `model` (a directory or a tar archive).

    Raises:
        FileNotFoundError: no such path, or no model in it.
        tarfile.TarError: no archive, or one with members that lead out of it.
    """
    with _model_directory(model) as directory:
        return _classify(directory, texts)


@contextlib.contextmanager
def _model_directory(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield _with_config(path)
        return
    with tempfile.TemporaryDirectory(prefix="hotfire-model-") as directory:
        with tarfile.open(path) as archive:
            archive.extractall(directory, filter="data")
        yield _with_config(Path(directory))


def _with_config(directory: Path) -> Path:
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(f"{directory} holds no model: config.json is missing")
    return directory


def _classify(directory: Path, texts: Sequence[str]) -> list[Classified]:
    # Plain torch is enough, and starting torch_xla would cost more than the answer.
    os.environ.setdefault("USE_TORCH_XLA", "0")
    import torch

    hf: Any = import_module("transformers")
    tokenizer = hf.AutoTokenizer.from_pretrained(directory)
    model = hf.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    encoded = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        probabilities = model(**encoded).logits.softmax(dim=-1)
    best, index = probabilities.max(dim=-1)
    return [
        Classified(text=text, label=model.config.id2label[i], probability=p)
        for text, i, p in zip(texts, index.tolist(), best.tolist(), strict=True)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line per sentence. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="classify", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("sentences", nargs="+", metavar="SENTENCE")
    args = parser.parse_args(argv)
    try:
        results = classify(args.model, args.sentences)
    except (OSError, tarfile.TarError) as error:
        print(f"classify: {error}", file=sys.stderr)
        return 1
    for result in results:
        print(f"{result.label}\t{result.probability:.3f}\t{result.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
