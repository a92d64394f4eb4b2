"""`hotfire run` of a trivial script minus `python` of it, and `hotfire --help` minus `python -c pass`.

Side by side, alternating, medians. Limits: 0.35 s and 0.12 s more.
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

SCRIPT = "print('ready')\n"


def seconds(argv: list[str], cwd: Path, env: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(argv, cwd=cwd, env=env, check=True, capture_output=True)
    return time.perf_counter() - start


def measure(rounds: int) -> dict[str, float]:
    hotfire = [sys.executable, "-m", "hotfire.entrypoints"]
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        (cwd / "train.py").write_text(SCRIPT, encoding="utf-8")
        env = {**os.environ, "HOTFIRE_HOME": str(cwd / "home"), "HOTFIRE_CACHE": str(cwd / "cache")}
        cases = {
            "python": lambda n: [sys.executable, "train.py"],
            "run": lambda n: [*hotfire, "run", "train.py", "--name", f"bench-{n}"],
            "pass": lambda n: [sys.executable, "-c", "pass"],
            "help": lambda n: [*hotfire, "--help"],
        }
        seconds(cases["run"](rounds), cwd, env)  # the first run fills the cache of shapes
        taken: dict[str, list[float]] = {name: [] for name in cases}
        for n in range(rounds):
            for name, argv in cases.items():
                taken[name].append(seconds(argv(n), cwd, env))
    median = {name: statistics.median(values) for name, values in taken.items()}
    return {
        **{f"{name}_seconds": round(value, 4) for name, value in median.items()},
        "run_more_seconds": round(median["run"] - median["python"], 4),
        "help_more_seconds": round(median["help"] - median["pass"], 4),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    print(json.dumps(measure(parser.parse_args().rounds)))
