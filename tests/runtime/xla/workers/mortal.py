"""The last rank dies at its third reduction, in the way argv[1] names; the others report."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch_xla.core.xla_model as xm


def main() -> None:
    rank, size = xm.get_ordinal(), xm.xrt_world_size()
    for turn in range(10):
        tensor = torch.ones(3, device="xla")
        if rank == size - 1 and turn == 2:
            if sys.argv[1] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if sys.argv[1] == "raise":
                raise ValueError("row 17 has no label")
            if sys.argv[1] == "part":  # ways: a collective of another group, which nobody joins
                xm.rendezvous("elsewhere", replicas=[1, 0])
            time.sleep(160)
        started = time.monotonic()
        try:
            xm.all_reduce("sum", [tensor])
        except Exception:
            print(f"seconds: {time.monotonic() - started:.1f}", flush=True)
            raise


if __name__ == "__main__":
    main()
