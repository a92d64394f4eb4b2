"""Every emulated collective once, with values; then every one that must refuse.

Uses init_process_group("xla") with torchrun's environment; rank 0 reports to argv[1].
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr

RANK, SIZE = int(xm.get_ordinal()), int(xm.xrt_world_size())


def mine(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor on the device that differs by rank: `values` plus the rank."""
    return (torch.tensor(values) + RANK).to(dtype).to(torch_xla.device())


def by_xm() -> dict:
    pair = [mine(1.0, 2.0), mine(5, dtype=torch.int64)]
    xm.all_reduce(xm.REDUCE_SUM, pair, scale=0.5)
    root = [mine(7.0), mine(8.0, 9.0)]
    xm.collective_broadcast(root, root_ordinal=1)
    half = xm.all_reduce(xm.REDUCE_SUM, mine(256.0, dtype=torch.bfloat16))
    return {
        "sum_list": [t.tolist() for t in pair],
        "max": xm.all_reduce(xm.REDUCE_MAX, mine(3.0)).tolist(),
        "min_bool": xm.all_reduce(xm.REDUCE_AND, mine(0.0) > 0).tolist(),
        "bfloat16": [half.tolist(), str(half.dtype)],
        "gather": xm.all_gather(mine(1.0, 2.0)).tolist(),
        "gather_dim1": xm.all_gather(mine(1.0, 2.0).view(1, 2), dim=1).tolist(),
        "broadcast_from_1": [t.tolist() for t in root],
        "reduce_scatter": xm.all_gather(
            xm.reduce_scatter(xm.REDUCE_SUM, mine(0.0, 10.0, 20.0, 30.0), 1.0, 0, SIZE)
        ).tolist(),
        "rendezvous": [b.decode() for b in xm.rendezvous("tag", f"from {RANK}".encode())],
        "rendezvous_empty": [b.decode() for b in xm.rendezvous("tag")],
        "mesh_reduce": xm.mesh_reduce("tag", RANK + 1, sum),
        "whole_world_as_group": xm.all_reduce("sum", mine(1.0), groups=[[0, 1]]).tolist(),
        "runtime": [xr.world_size(), xr.process_count(), xr.global_device_count()],
        "ordinals": xm.mesh_reduce("tag", [xr.global_ordinal(), xr.local_ordinal()], list),
        "master": xm.mesh_reduce("tag", xm.is_master_ordinal(local=False), list),
        "spawned": xm.mesh_reduce("tag", spawned(), list),
    }


def spawned() -> list[int]:
    """Scripts of old call xmp.spawn below torchrun too."""
    seen: list[int] = []
    xmp.spawn(lambda index, extra: seen.extend([index, extra]), args=(5,))
    return seen


def by_c10d() -> dict:
    mean, kept, base = mine(1.0), mine(1.0), torch.zeros(2 * SIZE, device=torch_xla.device())
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    dist.reduce(kept, dst=0)
    parts = [torch.zeros(1, device=torch_xla.device()) for _ in range(SIZE)]
    dist.all_gather(parts, mine(1.0))
    dist.all_gather_into_tensor(base, mine(1.0, 2.0))
    shard = torch.zeros(1, device=torch_xla.device())
    dist.reduce_scatter_tensor(shard, mine(1.0, 2.0))
    objects = [{"rank": RANK} if RANK == 0 else None]
    dist.broadcast_object_list(objects, src=0)
    alone = dist.new_group([0])
    single = mine(4.0)
    if RANK == 0:
        dist.all_reduce(single, group=alone)
    dist.barrier()
    return {
        "backend": dist.get_backend(),
        "mean": mean.tolist(),
        "reduce": xm.all_gather(kept).tolist(),
        "all_gather": [p.item() for p in parts],
        "all_gather_into_tensor": base.tolist(),
        "reduce_scatter_tensor": xm.all_gather(shard).tolist(),
        "broadcast_object": objects,
        "subgroup_of_one": single.tolist(),
    }


def refused() -> dict:
    t = mine(1.0, 2.0)
    pair = [mine(1.0), mine(1.0)]
    calls: dict[str, Callable[[], object]] = {
        "xm groups": lambda: xm.all_reduce("sum", t, groups=[[0], [1]]),
        "xm gather groups": lambda: xm.all_gather(t, groups=[[0], [1]]),
        "xm.all_to_all": lambda: xm.all_to_all(t, 0, 0, SIZE),
        "xm.collective_permute": lambda: xm.collective_permute(t, [[0, 1], [1, 0]]),
        "xm.send": lambda: xm.send(t, 1),
        "dist.all_to_all": lambda: dist.all_to_all(pair, pair),
        "dist.all_to_all_single": lambda: dist.all_to_all_single(t, t.clone()),
        "dist.gather": lambda: dist.gather(t, [t, t] if RANK == 0 else None, dst=0),
        "dist.scatter": lambda: dist.scatter(t, [t, t] if RANK == 0 else None, src=0),
        "dist.send": lambda: dist.send(t, dst=1 - RANK),
        "functional": lambda: functional.all_reduce(t, "sum", dist.group.WORLD),
    }
    outcome = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as error:  # noqa: BLE001 (the report shows what it was)
            outcome[name] = f"{type(error).__name__}: {error}"
        else:
            outcome[name] = "accepted"
    return outcome


def main() -> None:
    report = {"xm": by_xm()}
    dist.init_process_group("xla")
    report |= {"c10d": by_c10d(), "refused": refused()}
    if RANK == 0:
        Path(sys.argv[1]).write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
