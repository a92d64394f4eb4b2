"""A million log lines through `hotfire run` against the script alone with its output to a file.

Both sides minus the same script with no lines, so that start-up does not count; buffered and unbuffered. Limit 1.15;
the log kept by hotfire and the output shown are compared with the script's own, byte for byte.
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

SCRIPT = """
import os, sys
n = int(os.environ["LINES"])
flush = os.environ["FLUSH"] == "1"
for i in range(n):
    print("step", i, "loss = 0.123456 samples_per_second = 1234.5", flush=flush)
"""


def seconds(argv: list[str], cwd: Path, env: dict[str, str], out: Path) -> float:
    start = time.perf_counter()
    with out.open("wb") as stream:
        subprocess.run(argv, cwd=cwd, env=env, check=True, stdout=stream, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def script_lines(path: Path) -> bytes:
    with path.open("rb") as source:
        return b"".join(line for line in source if not line.startswith(b"hotfire: "))


def measure(lines: int, rounds: int, *, flush: bool) -> dict[str, float | int]:
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        (cwd / "train.py").write_text(SCRIPT, encoding="utf-8")
        base = {
            **os.environ,
            "HOTFIRE_HOME": str(cwd / "home"),
            "HOTFIRE_CACHE": str(cwd / "cache"),
            "FLUSH": str(int(flush)),
            # hotfire sets it for every host, as training images do; the other side gets the same.
            "PYTHONUNBUFFERED": "" if not flush else "1",
        }
        taken: dict[tuple[str, int], list[float]] = {}
        for n in range(rounds):
            for count in (0, lines):
                env = {**base, "LINES": str(count)}
                plain, shown = cwd / "plain", cwd / "shown"
                alone = seconds([sys.executable, "train.py"], cwd, env, plain)
                name = f"bench-{count}-{n}"
                argv = [sys.executable, "-m", "hotfire.entrypoints", "run", "train.py", "-q"]
                argv += ["--name", name, "--env", f"LINES={count}", "--env", f"FLUSH={int(flush)}"]
                argv += ["--env", f"PYTHONUNBUFFERED={base['PYTHONUNBUFFERED']}"]
                ours = seconds(argv, cwd, env, shown)
                taken.setdefault(("alone", count), []).append(alone)
                taken.setdefault(("hotfire", count), []).append(ours)
                # Three lines of `train` come first; all others are the script's.
                if plain.read_bytes() != script_lines(shown):
                    raise SystemExit(f"{name}: the output differs from the script's own")
                subprocess.run(
                    [sys.executable, "-m", "hotfire.entrypoints", "delete", name],
                    cwd=cwd,
                    env=env,
                    check=True,
                    capture_output=True,
                )
    median = {key: statistics.median(values) for key, values in taken.items()}
    alone = median["alone", lines] - median["alone", 0]
    ours = median["hotfire", lines] - median["hotfire", 0]
    return {
        "lines": lines,
        "lost": 0,
        "script_seconds": round(alone, 3),
        "hotfire_seconds": round(ours, 3),
        "ratio": round(ours / alone, 3),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    result = {
        word: measure(args.lines, args.rounds, flush=flush)
        for word, flush in (("buffered", False), ("unbuffered", True))
    }
    print(json.dumps(result))
