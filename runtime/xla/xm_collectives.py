"""The collectives of `torch_xla.core.xla_model` over CPU processes, with torch_xla's signatures.

Needs torch_xla. Installed by `hotfire.runtime.xla.cpu_collectives`. The arguments that steer how a
device's compiler lays a collective out (`pin_layout`, `channel_id`, ...) mean nothing here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

from hotfire.runtime.xla import staging
from hotfire.runtime.xla.host_group import HostGroup, dist, subgroup, world_group

Groups = Sequence[Sequence[int]] | None
Tensors = torch.Tensor | list[torch.Tensor]
OPERATIONS = {
    xm.REDUCE_SUM: dist.ReduceOp.SUM,
    xm.REDUCE_MUL: dist.ReduceOp.PRODUCT,
    xm.REDUCE_AND: dist.ReduceOp.BAND,
    xm.REDUCE_OR: dist.ReduceOp.BOR,
    xm.REDUCE_MIN: dist.ReduceOp.MIN,
    xm.REDUCE_MAX: dist.ReduceOp.MAX,
}


def install() -> None:
    """Replace them in `xm`; those without a replacement raise."""
    for function in (
        all_reduce,
        all_gather,
        all_to_all,
        reduce_scatter,
        collective_broadcast,
        collective_permute,
        xla_rendezvous,
    ):
        original = getattr(xm, function.__name__)
        setattr(xm, function.__name__, functools.wraps(original)(function))
    for name in ("send", "recv"):
        setattr(xm, name, functools.partial(refuse, f"xm.{name}"))


def all_reduce(
    reduce_type: str,
    inputs: Tensors,
    scale: float = 1.0,
    groups: Groups = None,
    pin_layout: bool = True,
) -> Any:
    """A list is reduced in place; of a tensor, the reduction is returned."""
    group, op = _group(groups), OPERATIONS[reduce_type]
    if not isinstance(inputs, torch.Tensor):
        staging.all_reduce_(group, list(inputs), op, scale)
        return inputs
    [result] = staging.reduced(group, [inputs], op, scale)
    return result.to(inputs.device)


def all_gather(
    value: Tensors,
    dim: int = 0,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: Any = None,
    use_global_device_ids: Any = None,
) -> Any:
    group = _group(groups)
    gathered = [torch.cat(staging.all_gather(group, v), dim) for v in _list(value)]
    return _results(value, gathered, output)


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    group = _group(groups)
    _check_count("xm.all_to_all", "split_count", split_count, group)
    parts = torch.chunk(value, split_count, split_dimension)
    if len({part.shape for part in parts}) > 1 or len(parts) < split_count:
        raise ValueError(f"dimension {split_dimension} of {list(value.shape)} by {split_count}")
    received = staging.exchange(group, parts, [part.shape for part in parts])
    return torch.cat(received, concat_dimension).to(value.device)


def reduce_scatter(
    reduce_type: str,
    input: Tensors,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: Any = None,
    use_global_device_ids: Any = None,
) -> Any:
    group = _group(groups)
    _check_count("xm.reduce_scatter", "shard_count", shard_count, group)
    whole = staging.reduced(group, _list(input), OPERATIONS[reduce_type], scale)
    mine = [w.chunk(shard_count, scatter_dim)[group.rank] for w in whole]
    return _results(input, mine, output)


def collective_broadcast(
    tensors: list[torch.Tensor],
    root_ordinal: int = 0,
    groups: Groups = None,
    pin_layout: bool = True,
) -> None:
    """`root_ordinal` is a rank of the job; a group without it keeps its own first member's."""
    group = _group(groups)
    root = group.members.index(root_ordinal) if root_ordinal in group.members else 0
    staging.broadcast_(group, tensors, root)


def collective_permute(value: torch.Tensor, pairs: list[list[int]]) -> torch.Tensor:
    """Zeros where no pair names this rank as its target, as XLA has it."""
    sources = [source for source, target in pairs if target == xr.global_ordinal()]
    parts = staging.all_gather(world_group(), value)
    result = parts[sources[0]] if sources else torch.zeros_like(parts[0])
    return result.to(value.device)


def xla_rendezvous(
    payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
) -> list[bytes]:
    if not isinstance(payload, bytes):
        raise TypeError(f"`payload` must be bytes, not {type(payload)}")
    group = _group([ordinals] if ordinals else None)
    staging.barrier(group)
    return group.gather_bytes(payload)


def refuse(what: str, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise: without a replacement, `what` would do nothing between CPU processes."""
    raise NotImplementedError(
        f"{what} is not emulated on CPU processes; it needs the device it was written for"
    )


def _group(groups: Groups) -> HostGroup:
    """The group of `groups` that this rank is in.

    Raises:
        ValueError: it is in none, or in several.
    """
    if not groups:
        return world_group()
    rank = xr.global_ordinal()
    mine = [tuple(group) for group in groups if rank in group]
    if len(mine) != 1:
        raise ValueError(f"rank {rank} is in {len(mine)} of the groups {[list(g) for g in groups]}")
    return subgroup(mine[0])


def _check_count(name: str, argument: str, count: int, group: HostGroup) -> None:
    if count != group.size:
        raise ValueError(f"{name} with {argument} {count} in a group of {group.size}")


def _list(value: Tensors) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _results(inputs: Tensors, found: list[torch.Tensor], output: Any) -> Any:
    """`found` in `output` when one was given, else on the device; a list for a list."""
    if output is not None:
        staging.write(_list(output), found)
        return output
    results = [f.to(t.device) for f, t in zip(found, _list(inputs), strict=True)]
    return results[0] if isinstance(inputs, torch.Tensor) else results
