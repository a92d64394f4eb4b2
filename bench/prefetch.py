"""What uploading in the background saves: `MpDeviceLoader` against `.to(device)` in the loop.

    python bench/prefetch.py [--rounds 5] [--steps 20]

The loader waits for each batch as for a disk, about as long as a step computes. Both train the same
model in one process; rounds alternate. Prints JSON: medians of seconds per step, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator
from typing import Any

from hotfire.runtime.xla import shims

BATCH, WIDTH = 256, 1024


def batches(count: int, wait: float) -> Iterator[Any]:
    import torch

    for _ in range(count):
        time.sleep(wait)
        yield torch.ones(BATCH, WIDTH)


class Task:
    """A few large matrices, and AdamW."""

    def __init__(self) -> None:
        import torch
        import torch_xla

        self.device = torch_xla.device()
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
        self.model = torch.nn.Sequential(*layers).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    def step(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        self.optimizer.step()

    def seconds(self, steps: int, wait: float, *, prefetch: bool) -> float:
        """Per step, from an idle device to an idle device."""
        import torch_xla
        import torch_xla.core.xla_model as xm
        from torch_xla.distributed import parallel_loader

        loader: Any = parallel_loader.MpDeviceLoader
        began = time.perf_counter()
        if prefetch:
            # Ends each step itself when asked for the next batch.
            for batch in loader(Slow(steps, wait), self.device):
                self.step(batch)
        else:
            for batch in batches(steps, wait):
                self.step(batch.to(self.device))
                torch_xla.sync()
        torch_xla.sync()
        xm.wait_device_ops()
        return (time.perf_counter() - began) / steps


class Slow:
    """Iterable once per round."""

    def __init__(self, count: int, wait: float) -> None:
        self._count = count
        self._wait = wait

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return batches(self._count, self._wait)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    shims.prepare_environment()
    task = Task()
    task.seconds(4, 0.0, prefetch=True)  # compiles
    task.seconds(4, 0.0, prefetch=False)
    wait = task.seconds(10, 0.0, prefetch=False)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for round_ in range(args.rounds):
        for prefetch in (round_ % 2 == 0, round_ % 2 == 1):
            seconds[prefetch].append(task.seconds(args.steps, wait, prefetch=prefetch))
    pairs = zip(seconds[False], seconds[True], strict=True)
    report = {
        "bench": "prefetch",
        "wait_per_batch": round(wait, 4),
        "seconds_per_step": {
            "to_device": round(statistics.median(seconds[False]), 4),
            "MpDeviceLoader": round(statistics.median(seconds[True]), 4),
        },
        "ratio": round(statistics.median(a / b for a, b in pairs), 3),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
