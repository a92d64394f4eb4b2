"""XLA tensors through host memory: pending work, to the host, a collective, back. Needs torch_xla.

`copy_` brings results back, never torch_xla's in-place replacement: views of a tensor, such as
DistributedDataParallel's gradient buckets, must see the new values. Sums of large floating tensors
need no copy: see `hotfire.runtime.xla.device_buffers`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_model as xm

from hotfire.runtime.xla import device_buffers
from hotfire.runtime.xla.host_group import HostGroup, dist

_XLAC: Any = vars(torch_xla)["_XLAC"]


def all_reduce_(
    group: HostGroup, tensors: Sequence[torch.Tensor], op: Any, scale: float = 1.0
) -> None:
    """Reduce `tensors` in place."""
    large = device_buffers.candidates(tensors) if op == dist.ReduceOp.SUM else set()
    with torch.no_grad():
        buffers = device_buffers.buffers(tensors, large, scale)
    with _staged():
        small = [i for i in range(len(tensors)) if i not in large]
        copies = dict(zip(small, _to_host([tensors[i] for i in small]), strict=True))
        on_host = [buffers[i].memory() if i in large else copies[i] for i in range(len(tensors))]
        results = group.all_reduce_(on_host, op, scale, in_place=large)
        for buffer in buffers.values():
            buffer.finish()
    write([tensors[i] for i in small], [results[i] for i in small])


def reduced(
    group: HostGroup, tensors: Sequence[torch.Tensor], op: Any, scale: float = 1.0
) -> list[torch.Tensor]:
    """The reduction of `tensors`, as CPU tensors."""
    return on_host(tensors, lambda copies: group.all_reduce_(copies, op, scale))


def broadcast_(group: HostGroup, tensors: Sequence[torch.Tensor], root: int) -> None:
    """Overwrite `tensors` by `root`'s."""
    write(tensors, on_host(tensors, lambda copies: group.broadcast_(copies, root)))


def all_gather(group: HostGroup, tensor: torch.Tensor) -> list[torch.Tensor]:
    """Every rank's `tensor`, as CPU tensors."""
    return on_host([tensor], lambda copies: group.all_gather(copies[0]))


def exchange(
    group: HostGroup, parts: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """What each rank sent to this one, as CPU tensors of `shapes`; ``parts[i]`` goes to rank i."""
    return on_host(parts, lambda copies: group.exchange(copies, shapes))


def barrier(group: HostGroup) -> None:
    """Wait for the device's pending work, then for every rank."""
    with _staged():
        group.barrier()


def on_host(
    tensors: Sequence[torch.Tensor],
    collective: Callable[[list[torch.Tensor]], list[torch.Tensor]],
) -> list[torch.Tensor]:
    """What `collective` makes of CPU copies of `tensors`."""
    with _staged():
        return collective(_to_host(tensors))


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
