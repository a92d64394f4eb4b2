"""Every emulated collective against what one process computes from all ranks' inputs.

Works for any number of ranks that 2 divides. Rank 0 reports to argv[1]: per check what was found
and what was expected, over all ranks; what was refused, and how; what mismatches raise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr

RANK, SIZE = int(xm.get_ordinal()), int(xm.xrt_world_size())
ALL = list(range(SIZE))
HALVES = [ALL[: SIZE // 2], ALL[SIZE // 2 :]]
EVENS, ODDS = ALL[::2], ALL[1::2]
MINE = EVENS if RANK in EVENS else ODDS
DEVICE = torch_xla.device()
LARGE = 300_000


def of(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What `rank` puts in: a CPU tensor that every rank can compute."""
    generator = torch.Generator().manual_seed(rank + 1)
    return torch.randint(1, 5, shape, generator=generator).to(dtype)


def mine(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return of(RANK, *shape, dtype=dtype).to(DEVICE)


def stack(ranks: list[int], *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([of(r, *shape, dtype=dtype) for r in ranks])


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


def halves(rank: int = RANK) -> list[int]:
    return HALVES[0] if rank in HALVES[0] else HALVES[1]


class Checks:
    """What differed from what one process expects."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.wrong: list[str] = []

    def equal(self, name: str, found: Any, expected: Any) -> None:
        self.done.append(name)
        if isinstance(expected, torch.Tensor):
            found = found.cpu()
            same = found.dtype == expected.dtype and torch.equal(found, expected)
            found, expected = found.flatten()[:9].tolist(), expected.flatten()[:9].tolist()
        else:
            same = found == expected
        if not same:
            self.wrong.append(f"rank {RANK}: {name}: {found} where {expected} was expected")


def xm_reductions(check: Checks) -> None:
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
    kinds += [torch.int64, torch.int32, torch.int16, torch.uint8]
    for dtype in kinds:
        total = stack(ALL, 3, dtype=dtype).sum(0, dtype=dtype)
        check.equal(f"sum {dtype}", xm.all_reduce("sum", mine(3, dtype=dtype)), total)
    check.equal("max", xm.all_reduce(xm.REDUCE_MAX, mine(9)), stack(ALL, 9).amax(0))
    check.equal("min", xm.all_reduce(xm.REDUCE_MIN, mine(9)), stack(ALL, 9).amin(0))
    check.equal("mul", xm.all_reduce(xm.REDUCE_MUL, mine(9)), stack(ALL, 9).prod(0))
    flags = stack(ALL, 9) > 2
    check.equal("and", xm.all_reduce(xm.REDUCE_AND, mine(9) > 2), flags.all(0))
    check.equal("or", xm.all_reduce(xm.REDUCE_OR, mine(9) > 2), flags.any(0))
    pair = [mine(2), mine(5, dtype=torch.int64)]
    xm.all_reduce(xm.REDUCE_SUM, pair, scale=0.5, pin_layout=False)
    check.equal("scaled list", pair[0], stack(ALL, 2).sum(0) * 0.5)
    total = stack(ALL, 5, dtype=torch.int64).sum(0)
    check.equal("scaled integers are cut", pair[1], (total * 0.5).long())
    for name, groups, members in (
        ("in halves", HALVES, halves()),
        ("in evens and odds", [EVENS, ODDS], MINE),
        ("in one group of all", [ALL], ALL),
        ("alone", [[r] for r in ALL], [RANK]),
    ):
        check.equal(
            f"sum {name}", xm.all_reduce("sum", mine(4), groups=groups), stack(members, 4).sum(0)
        )


def in_place(check: Checks) -> None:
    """Large sums happen in the device's buffer: aliases see them, nothing else does."""
    source = of(RANK, LARGE)
    sums = stack(ALL, LARGE).sum(0)
    tensor = source.to(DEVICE)
    clone, copy, detached, view = tensor.clone(), zeros(LARGE), tensor.detach(), tensor.view(-1, 10)
    copy.copy_(tensor)
    small, half = mine(2), mine(LARGE, dtype=torch.bfloat16)
    xm.all_reduce("sum", [tensor, small, half], scale=1 / SIZE)
    check.equal("large sum", tensor, sums / SIZE)
    check.equal("small beside large", small, stack(ALL, 2).sum(0) / SIZE)
    check.equal("large bfloat16", half, (sums / SIZE).bfloat16())
    check.equal("detached alias sees it", detached, sums / SIZE)
    check.equal("view sees it", view, (sums / SIZE).view(-1, 10))
    check.equal("clone does not", clone, source)
    check.equal("copy does not", copy, source)
    check.equal("host tensor does not", source, of(RANK, LARGE))
    base = mine(2, LARGE)
    parts = [base[0], base[1].view(-1, 10)]
    xm.all_reduce("sum", parts)
    both = stack(ALL, 2, LARGE).sum(0)
    check.equal("views of one base", parts[0], both[0])
    check.equal("their base", base, both)
    parts[0].mul_(2.0)
    check.equal("base after one is changed", base, torch.stack([2 * both[0], both[1]]))
    for name, alias in (
        ("view", lambda t: t.view(-1, 10)),
        ("detached alias", torch.Tensor.detach),
    ):
        tensor = mine(LARGE)
        again = alias(tensor)
        xm.all_reduce("sum", [tensor, again], scale=0.5)
        check.equal(f"tensor reduced beside its {name}", tensor, sums * 0.5)
        check.equal(f"{name} reduced beside its tensor", again.view(-1), sums * 0.5)
    twice = mine(LARGE)
    xm.all_reduce("sum", [twice, mine(LARGE)])
    xm.all_reduce("sum", [twice], scale=0.5)
    check.equal("reduced again", twice, sums * SIZE * 0.5)
    weight = torch.nn.Parameter(torch.zeros(600, 500, device=DEVICE))
    rows = of(RANK, 4, 500)
    torch.nn.functional.linear(rows.to(DEVICE), weight).sum().backward()
    kept = weight.grad
    xm.all_reduce("sum", [weight.grad], scale=1 / SIZE)
    mean = stack(ALL, 4, 500).sum(1).mean(0).expand(600, 500)
    check.equal("gradient of a matrix", weight.grad, mean.contiguous())
    check.equal("the same gradient object", kept is weight.grad, True)
    weight.grad.mul_(3.0)
    check.equal("gradient, clipped afterwards", kept, mean * 3.0)
    # Both gradients are views, and the list has aliases of them (`grad.data`).
    table = torch.nn.Parameter(torch.zeros(800, 100, device=DEVICE))
    weight.grad = None
    torch.nn.functional.linear(rows.to(DEVICE), weight).sum().backward()
    torch.nn.functional.embedding(torch.tensor([RANK]).to(DEVICE), table).sum().backward()
    xm.reduce_gradients(torch.optim.SGD([weight, table], lr=1.0))
    check.equal("gradient of a matrix, by the optimizer", weight.grad, mean.contiguous())
    touched = torch.zeros(800, 100)
    touched[:SIZE] = 1 / SIZE
    check.equal("gradient of a table, by the optimizer", table.grad, touched)
    ones, others = torch.ones(LARGE, device=DEVICE), torch.ones(LARGE, device=DEVICE)
    xm.all_reduce("sum", [ones])
    check.equal("equal constant is another buffer", others, torch.ones(LARGE))


def xm_others(check: Checks) -> None:
    check.equal("gather", xm.all_gather(mine(2)), stack(ALL, 2).flatten())
    gathered = xm.all_gather(mine(2, 3), dim=1, groups=[EVENS, ODDS], pin_layout=False)
    check.equal("gather in groups", gathered, torch.cat([of(r, 2, 3) for r in MINE], 1))
    target = zeros(SIZE * 2)
    xm.all_gather(mine(2), output=target)
    check.equal("gather into output", target, stack(ALL, 2).flatten())
    for name, groups, members in (("", None, ALL), (" in halves", HALVES, halves())):
        count, at = len(members), members.index(RANK)
        whole = stack(members, 4 * count).sum(0)
        shard = xm.reduce_scatter("sum", mine(4 * count), 0.5, 0, count, groups=groups)
        check.equal(f"reduce_scatter{name}", shard, whole.chunk(count)[at] * 0.5)
        swapped = xm.all_to_all(mine(count, 2), 0, 1, count, groups=groups)
        expected = torch.cat([of(r, count, 2)[at : at + 1] for r in members], 1)
        check.equal(f"all_to_all{name}", swapped, expected)
    ring = xm.collective_permute(mine(2), [[r, (r + 1) % SIZE] for r in ALL])
    check.equal("permute", ring, of((RANK - 1) % SIZE, 2))
    check.equal(
        "permute from one",
        xm.collective_permute(mine(2), [[1, 0]]),
        of(1, 2) if RANK == 0 else torch.zeros(2),
    )
    for name, groups, root in (("", None, 1), (" in halves", HALVES, halves()[0])):
        tensors = [mine(1), mine(2)]
        xm.collective_broadcast(tensors, root_ordinal=root, groups=groups)
        check.equal(f"broadcast{name}", tensors[1], of(root, 2))
    names = [b.decode() for b in xm.rendezvous("tag", f"from {RANK}".encode())]
    check.equal("rendezvous", names, [f"from {r}" for r in ALL])
    check.equal("rendezvous of nothing", xm.rendezvous("tag"), [b""] * SIZE)
    some = xm.rendezvous("tag", str(RANK).encode(), replicas=MINE)
    check.equal("rendezvous of some", some, [str(r).encode() for r in MINE])
    check.equal("mesh_reduce", xm.mesh_reduce("tag", RANK + 1, sum), sum(ALL) + SIZE)
    mean = xm.mesh_reduce("tag", numpy.float64(RANK), numpy.mean)
    check.equal("mesh_reduce of numpy", float(mean), sum(ALL) / SIZE)
    counts = [xr.world_size(), xr.process_count(), xr.global_device_count()]
    check.equal("runtime", counts, [SIZE] * 3)
    check.equal("ordinals", xm.mesh_reduce("tag", xr.global_ordinal(), list), ALL)
    seen: list[int] = []
    xmp.spawn(lambda index, extra: seen.extend([index, extra]), nprocs=8, args=(5,))
    check.equal("spawn below torchrun", seen, [RANK, 5])


def c10d(check: Checks) -> None:
    check.equal("backend", dist.get_backend(), "xla")
    groups = [dist.new_group(EVENS), dist.new_group(ODDS)]
    own = groups[0] if RANK in EVENS else groups[1]
    for name, group, members in (("", None, ALL), (" in its subgroup", own, MINE)):
        count, at, root = len(members), members.index(RANK), members[-1]
        tensor = mine(2)
        dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group)
        check.equal(f"c10d mean{name}", tensor, stack(members, 2).sum(0) * (1 / count))
        tensor = mine(2)
        dist.reduce(tensor, dst=root, group=group)
        expected = stack(members, 2).sum(0) if root == RANK else of(RANK, 2)
        check.equal(f"c10d reduce{name}", tensor, expected)
        tensor = mine(2)
        dist.broadcast(tensor, src=root, group=group)
        check.equal(f"c10d broadcast{name}", tensor, of(root, 2))
        parts = [zeros(2) for _ in members]
        dist.all_gather(parts, mine(2), group=group)
        check.equal(f"c10d all_gather{name}", torch.stack(parts), stack(members, 2))
        whole = zeros(2 * count)
        dist.all_gather_into_tensor(whole, mine(2), group=group)
        check.equal(f"c10d all_gather_into_tensor{name}", whole, stack(members, 2).flatten())
        shard = zeros(3)
        dist.reduce_scatter_tensor(shard, mine(3 * count), group=group)
        expected = stack(members, 3 * count).sum(0).chunk(count)[at]
        check.equal(f"c10d reduce_scatter_tensor{name}", shard, expected)
        dist.reduce_scatter(shard, list(mine(count, 3)), group=group)
        check.equal(f"c10d reduce_scatter{name}", shard, stack(members, count, 3).sum(0)[at])
        outputs = [zeros(2) for _ in members]
        dist.all_to_all(outputs, list(mine(count, 2)), group=group)
        expected = torch.stack([of(r, count, 2)[at] for r in members])
        check.equal(f"c10d all_to_all{name}", torch.stack(outputs), expected)
        swapped = zeros(count, 2)
        dist.all_to_all_single(swapped, mine(count, 2), group=group)
        check.equal(f"c10d all_to_all_single{name}", swapped, expected)
        found = [zeros(2) for _ in members] if root == RANK else None
        dist.gather(mine(2), found, dst=root, group=group)
        if found is not None:
            check.equal(f"c10d gather{name}", torch.stack(found), stack(members, 2))
        given = list(mine(count, 2)) if root == RANK else None
        share = zeros(2)
        dist.scatter(share, given, src=root, group=group)
        check.equal(f"c10d scatter{name}", share, of(root, count, 2)[at])
        dist.barrier(group=group)


def c10d_unequal(check: Checks) -> None:
    """Rank r sends r + 1 + i rows to rank i."""
    sent = [RANK + 1 + i for i in ALL]
    expected = [r + 1 + RANK for r in ALL]
    output = zeros(sum(expected), 2)
    dist.all_to_all_single(output, mine(sum(sent), 2), expected, sent)
    parts = [of(r, sum(r + 1 + i for i in ALL), 2).split([r + 1 + i for i in ALL]) for r in ALL]
    check.equal("c10d unequal all_to_all", output, torch.cat([p[RANK] for p in parts]))
    found = zeros(3)
    sending = dist.isend(mine(3), (RANK + 1) % SIZE)
    receiving = dist.irecv(found, (RANK - 1) % SIZE)
    sending.wait()
    receiving.wait()
    check.equal("c10d ring of isend and irecv", found, of((RANK - 1) % SIZE, 3))
    if RANK < 2:
        tensor = mine(4, dtype=torch.bfloat16)
        if RANK == 0:
            dist.send(tensor, 1, tag=7)
        else:
            dist.recv(tensor, 0, tag=7)
        check.equal("c10d send and recv", tensor, of(0, 4, dtype=torch.bfloat16))
    objects: list[Any] = [{"rank": RANK} if RANK == 0 else None]
    dist.broadcast_object_list(objects, src=0)
    check.equal("broadcast_object", objects, [{"rank": 0}])
    gathered: list[Any] = [None] * SIZE
    dist.all_gather_object(gathered, {"rank": RANK, "pad": "x" * RANK})
    check.equal("all_gather_object", [g["rank"] for g in gathered], ALL)


def functionals(check: Checks) -> None:
    world = dist.group.WORLD
    check.equal(
        "functional sum", functional.all_reduce(mine(3), "sum", world), stack(ALL, 3).sum(0)
    )
    mean = functional.all_reduce(mine(3), "avg", world)
    check.equal("functional mean", mean, stack(ALL, 3).sum(0) * (1 / SIZE))
    gathered = functional.all_gather_tensor(mine(2, 2), 0, world)
    check.equal("functional gather", gathered, stack(ALL, 2, 2).flatten(0, 1))
    shard = functional.reduce_scatter_tensor(mine(2 * SIZE), "sum", 0, world)
    check.equal("functional shard", shard, stack(ALL, 2 * SIZE).sum(0).chunk(SIZE)[RANK])
    swapped = functional.all_to_all_single(mine(SIZE, 2), None, None, world)
    expected = torch.stack([of(r, SIZE, 2)[RANK] for r in ALL])
    check.equal("functional all_to_all", swapped, expected)
    check.equal("functional broadcast", functional.broadcast(mine(2), 1, world), of(1, 2))


def outcomes(calls: dict[str, Callable[[], object]]) -> dict[str, str]:
    """What each call raises, or "accepted"."""
    outcome = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as error:  # noqa: BLE001 (the report shows what it was)
            outcome[name] = f"{type(error).__name__}: {error}"
        else:
            outcome[name] = "accepted"
    return outcome


def refused() -> dict[str, str]:
    tensor = mine(2)
    return outcomes(
        {
            "xm.send": lambda: xm.send(tensor, 1),
            "xm.recv": lambda: xm.recv(tensor, 1),
            "xr.use_spmd": xr.use_spmd,
            "dist.recv from anybody": lambda: dist.recv(tensor),
            "bitwise xor": lambda: dist.all_reduce(tensor, dist.ReduceOp.BXOR),
            "complex numbers": lambda: xm.all_gather(torch.zeros(2, dtype=torch.cfloat)),
            "monitored_barrier": lambda: dist.group.WORLD.monitored_barrier(),
        }
    )


def mismatched() -> dict[str, str]:
    """The last rank comes differently; all are told, and go on."""
    last = RANK == SIZE - 1
    return outcomes(
        {
            "shape": lambda: xm.all_reduce("sum", [mine(2), mine(3 if last else 2)]),
            "large shape": lambda: xm.all_reduce("sum", [mine(LARGE + last)]),
            "dtype": lambda: xm.all_gather(mine(2, dtype=[torch.float32, torch.int32][last])),
            "count": lambda: xm.all_reduce("sum", [mine(2)] * (2 if last else 1)),
            "operation": lambda: dist.barrier() if last else dist.all_reduce(mine(2)),
            "root": lambda: dist.broadcast(mine(2), src=int(last)),
            "split": lambda: dist.all_to_all_single(
                zeros(SIZE), mine(SIZE), None, [2, 0, *[1] * (SIZE - 2)] if last else [1] * SIZE
            ),
        }
    )


def main() -> None:
    check = Checks()
    xm_reductions(check)
    in_place(check)
    xm_others(check)
    dist.init_process_group("xla")
    c10d(check)
    c10d_unequal(check)
    functionals(check)
    report = {
        "done": check.done,
        "wrong": xm.mesh_reduce(
            "wrong", check.wrong, lambda lists: [w for wrong in lists for w in wrong]
        ),
        "refused": refused(),
        "mismatched": mismatched(),
        "size": SIZE,
    }
    if RANK == 0:
        Path(sys.argv[1]).write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
