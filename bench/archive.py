"""model.tar.gz: hotfire's packer against Python's ``tarfile`` "w:gz", side by side on the same float weights.

    python bench/archive.py [--megabytes 250] [--directory DIR]

Prints one JSON object: seconds and bytes of both, the ratio of the times (hotfire's median of three; goal: at least 10) and of the sizes.
"""

from __future__ import annotations

import argparse
import array
import json
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hotfire.runtime.archives import pack
from hotfire.runtime.events import ignore


def write_weights(path: Path, megabytes: int) -> None:
    """Normal float32 values like a trained layer's; each 8 MB block is new, so that no match reaches back."""
    draw = random.Random(0)
    pool = array.array("f", (draw.gauss(0, 0.02) for _ in range(2_000_000)))
    with path.open("wb") as file:
        left = megabytes * 1_000_000
        while left > 0:
            # Scaling changes every mantissa; drawing 62 million numbers one by one would take minutes.
            scale = draw.uniform(0.5, 2.0)
            block = array.array("f", (value * scale for value in pool)).tobytes()
            file.write(block[:left])
            left -= len(block)


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def with_tarfile(model: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(model, arcname=".")


def measure(directory: Path, megabytes: int) -> dict[str, object]:
    model = directory / "model"
    model.mkdir()
    write_weights(model / "model.safetensors", megabytes)
    (model / "model.safetensors").read_bytes()  # both sides find it in the page cache
    ours, theirs = directory / "ours.tar.gz", directory / "theirs.tar.gz"

    def hotfire() -> None:
        pack([("algo-1", model)], ours, ignore)

    fast = [timed(hotfire)]
    slow = timed(lambda: with_tarfile(model, theirs))
    fast += [timed(hotfire), timed(hotfire)]
    return {
        "megabytes": megabytes,
        "hotfire_seconds": [round(one, 3) for one in fast],
        "tarfile_seconds": round(slow, 3),
        "times_faster": round(slow / statistics.median(fast), 1),
        "hotfire_bytes": ours.stat().st_size,
        "tarfile_bytes": theirs.stat().st_size,
        "size_ratio": round(ours.stat().st_size / theirs.stat().st_size, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=250)
    parser.add_argument("--directory", type=Path, help="where to write; default: a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        print(json.dumps(measure(Path(scratch), arguments.megabytes)))


if __name__ == "__main__":
    main()
