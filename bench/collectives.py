"""Reducing a model's gradients between two CPU processes against a bare gloo all-reduce of the same bytes.

    python bench/collectives.py [--rounds 9] [--gloo]

Three ways take turns within one run of two processes, on the parameters of a MiniLM (91 MB of
float32): gloo on one flat CPU tensor; `xm.all_reduce` of a list of gradients that a device program
has just made, summed in its buffers; and of gradients that are views of tensors that somebody else
still holds, where the device writes both afterwards, as it does for whoever reads one. A device
program that makes the gradients costs time of its own, measured without the reduction in the same
round and subtracted. Prints JSON: medians of seconds and of ratios per round.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

TARGETS = {"in_place": 1.15, "copied": 1.7}
HIDDEN, LAYERS, VOCABULARY, POSITIONS = 384, 6, 30522, 512


def shapes() -> list[tuple[int, ...]]:
    """The parameters of a six-layer MiniLM, 22.7 million numbers."""
    layer: list[tuple[int, ...]] = []
    layer += [(HIDDEN, HIDDEN), (HIDDEN,)] * 4 + [(HIDDEN,)] * 4
    layer += [(4 * HIDDEN, HIDDEN), (4 * HIDDEN,), (HIDDEN, 4 * HIDDEN), (HIDDEN,)]
    embeddings: list[tuple[int, ...]] = [(VOCABULARY, HIDDEN), (POSITIONS, HIDDEN), (2, HIDDEN)]
    return embeddings + [(HIDDEN,)] * 2 + layer * LAYERS + [(HIDDEN, HIDDEN), (HIDDEN,)]


def worker(rounds: int, *, gloo: bool) -> dict[str, Any]:
    """One of the two processes."""
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm

    from hotfire.runtime.xla import neighbours
    from hotfire.runtime.xla.host_group import world_group

    if gloo:
        neighbours.WORTH_BYTES = sys.maxsize
    group = world_group()
    sizes = [torch.Size(shape).numel() for shape in shapes()]
    flat = torch.ones(sum(sizes))
    device = torch_xla.device()
    sources = [torch.ones(shape).to(device) for shape in shapes()]

    held: list[torch.Tensor] = []

    def separate(number: float) -> list[torch.Tensor]:
        return [source * number for source in sources]

    def views(number: float) -> list[torch.Tensor]:
        held[:] = separate(number)
        return [tensor.view(-1) for tensor in held]

    def device_step(make: Callable[[float], list[torch.Tensor]], *, reduce: bool) -> None:
        gradients = make(2.0)
        if reduce:
            xm.all_reduce(xm.REDUCE_SUM, gradients, scale=0.5)
            for gradient in gradients:  # as somebody finds it who reads it
                torch._functionalize_sync(gradient)
        torch_xla.sync()
        xm.wait_device_ops()

    def bare() -> None:
        group._gloo.allreduce([flat]).wait()

    contestants: dict[str, Callable[[], None]] = {
        "bare": bare,
        "in_place": lambda: device_step(separate, reduce=True),
        "in_place_program": lambda: device_step(separate, reduce=False),
        "copied": lambda: device_step(views, reduce=True),
        "copied_program": lambda: device_step(views, reduce=False),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 2):
        names = list(contestants)
        for name in names[turn % 5 :] + names[: turn % 5]:
            group.barrier()
            started = time.perf_counter()
            contestants[name]()
            if turn >= 2:  # the first two compile
                seconds[name].append(time.perf_counter() - started)
    return summary(seconds, megabytes=4 * sum(sizes) / 1e6)


def summary(seconds: dict[str, list[float]], megabytes: float) -> dict[str, Any]:
    ratios = {}
    for name in TARGETS:
        rows = zip(seconds[name], seconds[f"{name}_program"], seconds["bare"], strict=True)
        ratios[name] = statistics.median((full - program) / bare for full, program, bare in rows)
    return {
        "bench": "collectives",
        "megabytes": round(megabytes, 1),
        "seconds": {name: round(statistics.median(s), 4) for name, s in seconds.items()},
        "ratio_in_place": round(ratios["in_place"], 3),
        "ratio_copied": round(ratios["copied"], 3),
        "targets": TARGETS,
        "rounds": len(seconds["bare"]),
        "load": os.getloadavg()[0],
    }


def run_both(arguments: list[str]) -> str:
    """Two ranks on this machine; what rank 0 prints."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    world |= {"MASTER_PORT": port, "OMP_NUM_THREADS": "1", "PJRT_DEVICE": "CPU"}
    command = [sys.executable, "-m", "hotfire.runtime.xla.exec", __file__, *arguments]
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"a rank ended with {[rank.returncode for rank in ranks]}")
    return outputs[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--gloo", action="store_true", help="not in each other's memory")
    args = parser.parse_args()
    if "RANK" in os.environ:
        print(json.dumps(worker(args.rounds, gloo=args.gloo)))
        return 0
    report = json.loads(run_both(sys.argv[1:]).splitlines()[-1])
    print(json.dumps(report))
    return 0 if all(report[f"ratio_{name}"] <= limit for name, limit in TARGETS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
