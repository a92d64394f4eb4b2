"""A million log lines with ten MetricDefinitions against the same without, from the script's start to the last value.

A script writes its log to a file, as hosts do; a LogPump follows it and hands every chunk to a printer, and in one of
the two cases to a Scraper that writes its points to a file. Both minus the same with no lines; alternating, medians.
Limit 1.15 with one matching line in 1,000; every line matching is reported. No value may be lost in either.
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
from contextlib import ExitStack
from pathlib import Path

from hotfire.runtime.events import Event, LogChunk
from hotfire.runtime.observe.logs import LogPrinter, LogPump
from hotfire.runtime.observe.metric_files import PointFile
from hotfire.runtime.observe.metrics import Scraper
from hotfire.runtime.spec import MetricDefinition

SCRIPT = """
import sys
lines, every = int(sys.argv[1]), int(sys.argv[2])
for i in range(lines):
    if i % every == 0:
        print("step", i, "eval_loss = -0.123456 eval_accuracy = 0.9876")
    else:
        print("step", i, "loss: 0.123456 samples_per_second: 1234.5 lr: 1e-5")
"""
# As the guides have them: frameworks' own, an XGBoost one that begins with .*, the Hugging Face kind.
DEFINITIONS = [
    MetricDefinition(name=name, regex=regex)
    for name, regex in (
        ("eval_accuracy", r"eval_accuracy.*=\D*(.*?)$"),
        ("eval_loss", r"eval_loss = (-?[0-9.]+)"),
        ("train_runtime", r"train_runtime.*=\D*(.*?)$"),
        (
            "train:error",
            r".*\[[0-9]+\].*#011train-error:([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?).*",
        ),
        ("loss", r"'loss': ([0-9.eE+-]+)"),
        ("grad_norm", r"'grad_norm': ([0-9.eE+-]+)"),
        ("ganloss", r"GAN_loss=(.*?);"),
        ("validation", r"Val Loss\s+([0-9.]+)"),
        ("f1", r"f1_score: ([0-9.]+)%"),
        ("throughput", r"tokens/s\W+(\d+)"),
    )
]


def seconds(folder: Path, lines: int, every: int, definitions: list[MetricDefinition]) -> float:
    log, points, shown = folder / "log", folder / "points.csv", folder / "shown"
    for path in (log, points):
        path.unlink(missing_ok=True)
    start = time.perf_counter()
    with ExitStack() as stack:
        printer = LogPrinter(stack.enter_context(shown.open("wb")), ("algo-1",), live=False)
        sink = stack.enter_context(PointFile(points))
        scraper = stack.enter_context(Scraper(definitions=definitions, sink=sink))

        def observe(event: Event) -> None:
            assert isinstance(event, LogChunk)
            printer(event)
            scraper(event)

        stack.enter_context(LogPump({"algo-1": log}, observe))
        with log.open("wb") as out:
            subprocess.run(
                [sys.executable, "-c", SCRIPT, str(lines), str(every)],
                stdout=out,
                check=True,
                env={**os.environ, "PYTHONUNBUFFERED": ""},
            )
    taken = time.perf_counter() - start
    if definitions:
        found = {one.name: one.values for one in scraper.statistics}
        wanted = -(-lines // every)
        if (found["eval_loss"], found["eval_accuracy"]) != (wanted, wanted):
            raise SystemExit(f"values were lost: {found}, wanted {wanted}")
    return taken


def measure(lines: int, rounds: int, every: int) -> dict[str, float | int]:
    taken: dict[tuple[bool, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for count in (0, lines):
                for with_them in (False, True):
                    definitions = DEFINITIONS if with_them else []
                    value = seconds(Path(folder), count, every, definitions)
                    taken.setdefault((with_them, count), []).append(value)
    median = {key: statistics.median(values) for key, values in taken.items()}
    without = median[False, lines] - median[False, 0]
    with_them = median[True, lines] - median[True, 0]
    return {
        "lines": lines,
        "lost": 0,
        "without_seconds": round(without, 3),
        "with_seconds": round(with_them, 3),
        "ratio": round(with_them / without, 3),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    result = {
        "one_in_1000": measure(args.lines, args.rounds, 1000),
        "every_line": measure(args.lines // 10, args.rounds, 1),
    }
    print(json.dumps(result))
