"""The last rank dies at its third reduction, in the way argv[1] names; the others report.

"midway" is in the middle of a sum in which the ranks read each other's memory.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch_xla.core.xla_model as xm

from hotfire.runtime.xla import neighbours


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(how: str) -> None:
    """Do so, at once or in the reduction that comes next."""
    if how == "kill":
        die()
    if how == "raise":
        raise ValueError("row 17 has no label")
    if how == "part":  # ways: a collective of another group, which nobody joins
        xm.rendezvous("elsewhere", replicas=[1, 0])
    if how == "midway":
        vars(neighbours)["_offset"] = die
    else:
        time.sleep(160)


def main() -> None:
    how, rank, size = sys.argv[1], xm.get_ordinal(), xm.xrt_world_size()
    for turn in range(10):
        tensor = torch.ones(3_000_000 if how == "midway" else 3, device="xla")
        if rank == size - 1 and turn == 2:
            fail(how)
        started = time.monotonic()
        try:
            xm.all_reduce("sum", [tensor])
        except Exception:
            print(f"seconds: {time.monotonic() - started:.1f}", flush=True)
            raise


if __name__ == "__main__":
    main()
