"""torch's functional collectives of XLA tensors over CPU processes. Needs torch_xla.

DTensor, FSDP2 and compiled programs call these; torch_xla's own kernels would do nothing between
CPU processes. Each takes the group's name and returns a new tensor, as
`torch.distributed._functional_collectives` defines it.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed.distributed_c10d
import torch.library

from hotfire.runtime.xla import staging
from hotfire.runtime.xla.c10d_backend import average_as_sum
from hotfire.runtime.xla.host_group import HostGroup, dist

_c10d: Any = torch.distributed.distributed_c10d
# Kept alive: torch drops a library's kernels with the object.
_libraries: list[Any] = []


def install() -> None:
    """Replace the kernels for XLA tensors."""
    make_library: Any = torch.library.Library
    library = make_library("_c10d_functional", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        for kernel in (
            all_reduce,
            all_reduce_,
            all_gather_into_tensor,
            reduce_scatter_tensor,
            all_to_all_single,
            broadcast,
            broadcast_,
            wait_tensor,
        ):
            library.impl(kernel.__name__, kernel, "XLA", allow_override=True)
    _libraries.append(library)


def all_reduce(tensor: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
    return all_reduce_(tensor.clone(), reduce_op, group_name)


def all_reduce_(tensor: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
    group = _host(group_name)
    op, scale = _reduction(reduce_op, group)
    staging.write([tensor], staging.reduced(group, [tensor], op, scale))
    return tensor


def all_gather_into_tensor(tensor: torch.Tensor, group_size: int, group_name: str) -> torch.Tensor:
    return torch.cat(staging.all_gather(_host(group_name), tensor)).to(tensor.device)


def reduce_scatter_tensor(
    tensor: torch.Tensor, reduce_op: str, group_size: int, group_name: str
) -> torch.Tensor:
    group = _host(group_name)
    op, scale = _reduction(reduce_op, group)
    [whole] = staging.reduced(group, [tensor], op, scale)
    return whole.chunk(group_size)[group.rank].to(tensor.device)


def all_to_all_single(
    tensor: torch.Tensor, output_sizes: list[int], input_sizes: list[int], group_name: str
) -> torch.Tensor:
    """Sizes are rows: of the first dimension."""
    shapes = [(int(rows), *tensor.shape[1:]) for rows in output_sizes]
    parts = torch.split(tensor, [int(rows) for rows in input_sizes])
    return torch.cat(staging.exchange(_host(group_name), parts, shapes)).to(tensor.device)


def broadcast(tensor: torch.Tensor, src: int, group_name: str) -> torch.Tensor:
    return broadcast_(tensor.clone(), src, group_name)


def broadcast_(tensor: torch.Tensor, src: int, group_name: str) -> torch.Tensor:
    """`src` is a rank of the group."""
    staging.broadcast_(_host(group_name), [tensor], src)
    return tensor


def wait_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _host(group_name: str) -> HostGroup:
    host: HostGroup = _c10d._resolve_process_group(group_name).host
    return host


def _reduction(name: str, group: HostGroup) -> tuple[Any, float]:
    return average_as_sum(getattr(dist.ReduceOp, name.upper()), group.size)
