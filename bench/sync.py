"""One gigabyte in 1,000 checkpoint files synchronised to a local path against `cp -r` of the same.

From entering Sync to the end of its flush, everything found at once; alternating, medians, a `sync` before each so that
neither pays for the other's pages. Limit 1.2. Also reported: 10,000 files of 1 kB; the peak memory of a 5 GB sparse file.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hotfire.runtime.destinations import LocalDestination
from hotfire.runtime.events import ignore
from hotfire.runtime.sync import Sync


def make_files(directory: Path, count: int, size: int) -> None:
    block = os.urandom(size)
    for number in range(count):
        folder = directory / f"checkpoint-{number // 100}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"part-{number}").write_bytes(block)


def copied(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-r", source, target], check=True)


def synchronised(source: Path, target: Path) -> None:
    with Sync(source, LocalDestination(target), ignore) as one:
        pass
    assert not one.deleted


def seconds(do: Callable[[Path, Path], None], source: Path, target: Path) -> float:
    os.sync()
    start = time.perf_counter()
    do(source, target)
    taken = time.perf_counter() - start
    names = sum(len(files) for _, _, files in os.walk(target))
    wanted = sum(
        not name.endswith(".sagemaker-uploaded")
        for _, _, files in os.walk(source)
        for name in files
    )
    if names < wanted:
        raise SystemExit(f"{names} of {wanted} files arrived")
    shutil.rmtree(target)
    return taken


def compare(folder: Path, count: int, size: int, rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {"cp": [], "sync": []}
    for n in range(rounds):
        for name, do in (("cp", copied), ("sync", synchronised)):
            source = (
                folder / f"{name}-{n}"
            )  # fresh for each: the other's markers would be in the way
            make_files(source, count, size)
            taken[name].append(seconds(do, source, folder / "to"))
            shutil.rmtree(source)
    median = {name: statistics.median(values) for name, values in taken.items()}
    return {
        "cp_seconds": round(median["cp"], 3),
        "sync_seconds": round(median["sync"], 3),
        "ratio": round(median["sync"] / median["cp"], 3),
    }


def sparse(folder: Path) -> dict[str, float]:
    source = folder / "sparse"
    source.mkdir()
    with (source / "model.pt").open("wb") as file:
        file.truncate(5 << 30)
        file.seek(3 << 30)
        file.write(b"x" * (1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken = seconds(synchronised, source, folder / "to")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": round(taken, 3), "peak_memory_more_kB": grown}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = {
            "sparse_5_GB": sparse(folder),
            "1_GB_in_1000": compare(folder, 1000, 1_000_000, args.rounds),
            "10_MB_in_10000": compare(folder, 10_000, 1000, 2),
        }
    print(json.dumps(result))
