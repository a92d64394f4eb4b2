"""The torch.distributed backend "xla" for CPU processes: collectives staged through host memory.

Needs torch and torch_xla. Installed by `hotfire.runtime.xla.cpu_collectives`.
"""

from __future__ import annotations

import datetime
from typing import Any, NoReturn

import torch

from hotfire.runtime.xla import staging
from hotfire.runtime.xla.host_group import HostGroup, dist


class HostStagedProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A c10d process group (the world, or ``new_group``'s part of it) over XLA tensors on CPU.

    Methods are called by torch.distributed with c10d's option objects; all are synchronous and
    raise `CollectiveError`. What is not implemented raises NotImplementedError.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta) -> None:
        super().__init__(rank, size)
        self.host = HostGroup(store, rank, size, timeout)
        self._name = ""

    def getBackendName(self) -> str:
        return "xla"

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        op, scale = self._reduction(opts.reduceOp)
        staging.all_reduce_(self.host, tensors, op, scale)
        return _done(tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        op, scale = self._reduction(opts.reduceOp)
        keep = self.host.rank == opts.rootRank
        staging.all_reduce_(self.host, tensors, op, scale, write_back=keep)
        return _done(tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        staging.broadcast_(self.host, tensors, opts.rootRank)
        return _done(tensors)

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        for parts, tensor in zip(outputs, inputs, strict=True):
            staging.write(parts, staging.all_gather(self.host, tensor))
        return _done([part for parts in outputs for part in parts])

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        parts = staging.all_gather(self.host, tensor)
        staging.write([output], [torch.cat([p.reshape(-1) for p in parts]).view(output.shape)])
        return _done([output])

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> Any:
        op, scale = self._reduction(opts.reduceOp)
        for output, parts in zip(outputs, inputs, strict=True):
            reduced = staging.reduced(self.host, parts, op, scale)
            staging.write([output], [reduced[self.host.rank]])
        return _done(outputs)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Any:
        op, scale = self._reduction(opts.reduceOp)
        [reduced] = staging.reduced(self.host, [tensor], op, scale)
        mine = reduced.reshape(self.host.size, -1)[self.host.rank]
        staging.write([output], [mine.view(output.shape)])
        return _done([output])

    def barrier(self, opts: Any = None) -> Any:
        staging.barrier(self.host)
        return _done([])

    def _reduction(self, op: Any) -> tuple[Any, float]:
        """gloo has no average: a sum, scaled."""
        for plain in (
            dist.ReduceOp.SUM,
            dist.ReduceOp.PRODUCT,
            dist.ReduceOp.MIN,
            dist.ReduceOp.MAX,
            dist.ReduceOp.BAND,
            dist.ReduceOp.BOR,
        ):
            if op == plain:
                return plain, 1.0
        if op == dist.ReduceOp.AVG:
            return dist.ReduceOp.SUM, 1.0 / self.host.size
        raise NotImplementedError(f"reduce operation {op} of XLA tensors on CPU processes")


def _refuse(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"torch.distributed.{name} of XLA tensors is not emulated on CPU processes; "
            "all_reduce, all_gather, broadcast, reduce, reduce_scatter and barrier are"
        )

    return refuse


# The base class would answer these with an assertion about a missing backend.
for _method, _name in {
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "monitored_barrier": "monitored_barrier",
}.items():
    setattr(HostStagedProcessGroup, _method, _refuse(_name))


def _done(result: Any) -> Any:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    c10d: Any = torch._C._distributed_c10d
    return c10d._create_work_from_future(future)
