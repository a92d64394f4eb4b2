"""Write the demo's corpus: short labelled reviews made from templates (synthetic).

    python examples/demo/make_corpus.py examples/demo/data

A review's label follows from its last statement, with negation taken into account, so that
counting good and bad words is not enough. One in five pairs of aspect and adjective occurs in the
test set only: the accuracy there is about pairs that training never showed.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterator
from pathlib import Path

ASPECTS = (
    "acting", "ending", "plot", "music", "dialogue", "pacing", "camera work", "cast", "humour",
    "story", "direction", "script", "soundtrack", "opening", "costume design", "editing",
)  # fmt: skip
GOOD = (
    "brilliant", "charming", "clever", "delightful", "excellent", "funny", "gripping", "lovely",
    "memorable", "moving", "sharp", "splendid", "superb", "touching", "warm", "wonderful",
)  # fmt: skip
BAD = (
    "awful", "bland", "boring", "clumsy", "dreadful", "dull", "empty", "flat", "forgettable",
    "lazy", "messy", "painful", "poor", "silly", "tedious", "weak",
)  # fmt: skip
PLAIN = (
    "the {a} was {j}",
    "the {a} was really {j}",
    "i found the {a} {j}",
    "{j} {a} from first to last",
)
NEGATED = ("the {a} was not {j}", "the {a} was never {j}", "the {a} was far from {j}")
CONTRAST = ("{x} but {y}", "although {x} , {y}", "{x} , yet {y}", "{x} ; in the end {y}")
CONTRAST_SHARE = 1 / 3
# Three plain statements for each negated one.
KINDS = ((PLAIN, False), (PLAIN, False), (PLAIN, False), (NEGATED, True))
OPENINGS = ("", "", "", "we saw it on a rainy sunday . ", "my sister chose it . ", "seen twice . ")


def is_held_out(aspect: int, adjective: int) -> bool:
    """Whether this pair of positions belongs to the test set."""
    return (aspect + adjective) % 5 == 0


def statement(rng: random.Random, *, positive: bool, held_out: bool) -> str:
    """One clause that says something `positive` or not, with a pair of the right set."""
    templates, negated = rng.choice(KINDS)
    words = GOOD if positive != negated else BAD
    offset = 0 if words is GOOD else len(GOOD)
    while True:
        a, j = rng.randrange(len(ASPECTS)), rng.randrange(len(words))
        if is_held_out(a, j + offset) == held_out:
            return rng.choice(templates).format(a=ASPECTS[a], j=words[j])


def review(rng: random.Random, *, positive: bool, held_out: bool) -> str:
    """One review; in a third of them an opposite statement comes first."""
    text = statement(rng, positive=positive, held_out=held_out)
    if rng.random() < CONTRAST_SHARE:
        other = statement(rng, positive=not positive, held_out=held_out)
        text = rng.choice(CONTRAST).format(x=other, y=text)
    return rng.choice(OPENINGS) + text + " ."


def corpus(seed: int, rows: int, *, held_out: bool) -> Iterator[tuple[str, str]]:
    """`rows` distinct (text, label) pairs, the labels in turn."""
    rng = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < rows:
        positive = len(seen) % 2 == 0
        text = review(rng, positive=positive, held_out=held_out)
        if text not in seen:
            seen.add(text)
            yield text, "positive" if positive else "negative"


def write_csv(path: Path, rows: Iterator[tuple[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("text", "label"))
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--train-rows", type=int, default=1600)
    parser.add_argument("--test-rows", type=int, default=300)
    args = parser.parse_args()
    write_csv(args.directory / "train" / "train.csv", corpus(1, args.train_rows, held_out=False))
    write_csv(args.directory / "test" / "test.csv", corpus(2, args.test_rows, held_out=True))


if __name__ == "__main__":
    main()
