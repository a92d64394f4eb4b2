"""XLA tensors through host memory: pending work, to the host, a collective, back. Needs torch_xla.

`copy_` brings results back, never torch_xla's in-place replacement: views of a tensor, such as
DistributedDataParallel's gradient buckets, must see the new values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_model as xm

from hotfire.runtime.xla.host_group import HostGroup

_XLAC: Any = vars(torch_xla)["_XLAC"]


def all_reduce_(
    group: HostGroup,
    tensors: Sequence[torch.Tensor],
    op: Any,
    scale: float = 1.0,
    *,
    write_back: bool = True,
) -> None:
    """Reduce `tensors` in place (nowhere when `write_back` is false: a reduce's other ranks)."""
    results = reduced(group, tensors, op, scale)
    if write_back:
        write(tensors, results)


def reduced(
    group: HostGroup,
    tensors: Sequence[torch.Tensor],
    op: Any,
    scale: float = 1.0,
) -> list[torch.Tensor]:
    """The reduction of `tensors`, as CPU tensors."""
    with _staged():
        return group.all_reduce_(_to_host(tensors), op, scale)


def broadcast_(group: HostGroup, tensors: Sequence[torch.Tensor], root: int) -> None:
    """Overwrite `tensors` by `root`'s."""
    with _staged():
        results = group.broadcast_(_to_host(tensors), root)
    write(tensors, results)


def all_gather(group: HostGroup, tensor: torch.Tensor) -> list[torch.Tensor]:
    """Every rank's `tensor`, as CPU tensors."""
    with _staged():
        return group.all_gather(_to_host([tensor])[0])


def barrier(group: HostGroup) -> None:
    """Wait for the device's pending work, then for every rank."""
    with _staged():
        group.barrier()


def write(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy CPU `values` into the XLA tensors `targets`."""
    with torch.no_grad(), _execution_allowed():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)


@contextlib.contextmanager
def _staged() -> Iterator[None]:
    """All pending work done, and none of it twice.

    The whole pending graph is run, as `torch_xla.sync` does, and not only the tensors wanted:
    what else is pending (a loss) would run its forward pass again later. Step closures wait for
    the script's own step boundary.
    """
    with torch.no_grad(), _execution_allowed():
        _XLAC._xla_step_marker(_XLAC._xla_get_default_device(), [], wait=True)
        xm.wait_device_ops()
        yield


@contextlib.contextmanager
def _execution_allowed() -> Iterator[None]:
    """A collective is part of the graph on real devices, so `full_graph=True` must let it pass."""
    before = _XLAC._get_allow_execution()
    _XLAC._set_allow_execution(True)
    try:
        yield
    finally:
        _XLAC._set_allow_execution(before)


def _to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Host copies; a CPU tensor given to a collective (a script's slip) passes as it is."""
    on_device = [t for t in tensors if t.device.type == "xla"]
    copies = iter(_XLAC._xla_get_cpu_tensors(on_device) if on_device else [])
    return [next(copies) if t.device.type == "xla" else t for t in tensors]
