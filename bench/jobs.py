"""`hotfire ps` with 1,000 finished jobs; and from the death of a worker to the job's Failed in its record.

The jobs are copies of one that ran; medians. The worker is a script killed with SIGKILL while it trains: alone on its
host, and as one of two under torchrun. Limits: 0.3 s, and 2 s each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOTFIRE = [sys.executable, "-m", "hotfire.entrypoints"]
SCRIPT = """
import os, pathlib, signal, time
if os.environ.get("LOCAL_RANK", "0") == os.environ["SM_HP_LAST"]:
    time.sleep(1)
    pathlib.Path(os.environ["SM_HP_MOMENT"]).write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


def listing(cwd: Path, env: dict[str, str], count: int, rounds: int) -> float:
    """Seconds of `hotfire ps` with ``count`` jobs."""
    (cwd / "short.py").write_text("print('loss = 0.5')\n", encoding="utf-8")
    run = [*HOTFIRE, "run", "short.py", "--name", "first", "--metric", "loss=loss = ([0-9.]+)"]
    subprocess.run(run, cwd=cwd, env=env, check=True, capture_output=True)
    jobs = Path(env["HOTFIRE_HOME"]) / "jobs"
    for number in range(1, count):
        copy = jobs / f"job-{number}"
        shutil.copytree(jobs / "first", copy, symlinks=True)
        record = json.loads((copy / "record.json").read_text(encoding="utf-8"))
        (copy / "record.json").write_text(json.dumps({**record, "name": copy.name}))
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        told = subprocess.run(
            [*HOTFIRE, "ps"], cwd=cwd, env=env, check=True, capture_output=True, text=True
        ).stdout
        taken.append(time.perf_counter() - start)
        if len(told.splitlines()) != count + 1:
            raise SystemExit(f"ps lists {len(told.splitlines()) - 1} of {count} jobs")
    return statistics.median(taken)


def death(cwd: Path, env: dict[str, str], name: str, workers: int) -> float:
    """Seconds from SIGKILL of the last of ``workers`` to Failed."""
    moment = cwd / name
    (cwd / "long.py").write_text(SCRIPT, encoding="utf-8")
    words = [*HOTFIRE, "run", "long.py", "--name", name, "--detach"]
    words += ["-p", f"moment={moment}", "-p", f"last={workers - 1}"]
    words += ["--processes-per-host", str(workers)] if workers > 1 else []
    subprocess.run(words, cwd=cwd, env=env, check=True, capture_output=True)
    record = Path(env["HOTFIRE_HOME"]) / "jobs" / name / "record.json"
    end = time.monotonic() + 120
    while '"Failed"' not in record.read_text(encoding="utf-8"):
        if time.monotonic() > end:
            raise SystemExit(f"{name} has not failed")
        time.sleep(0.005)
    return time.time() - float(moment.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        env = {**os.environ, "HOTFIRE_HOME": str(cwd / "home"), "HOTFIRE_CACHE": str(cwd / "cache")}
        result = {
            word: round(
                statistics.median(
                    death(cwd, env, f"{word.replace(chr(95), chr(45))}-{n}", count)
                    for n in range(3)
                ),
                3,
            )
            for word, count in (("worker_death_seconds", 1), ("worker_death_torchrun_seconds", 2))
        }
        shutil.rmtree(cwd / "home")
        result["ps_seconds"] = round(listing(cwd, env, args.jobs, args.rounds), 3)
    print(json.dumps(result))
