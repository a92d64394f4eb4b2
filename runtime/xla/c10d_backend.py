"""The torch.distributed backend "xla" for CPU processes: collectives staged through host memory.

Needs torch and torch_xla. Installed by `hotfire.runtime.xla.cpu_collectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from hotfire.runtime.xla import staging
from hotfire.runtime.xla.host_group import HostGroup, dist

_PLAIN = (
    dist.ReduceOp.SUM,
    dist.ReduceOp.PRODUCT,
    dist.ReduceOp.MIN,
    dist.ReduceOp.MAX,
    dist.ReduceOp.BAND,
    dist.ReduceOp.BOR,
)


class HostStagedProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A c10d process group (the world, or ``new_group``'s part of it) over XLA tensors on CPU.

    Methods are called by torch.distributed with c10d's option objects. All are synchronous, except
    that `send` and `recv` end with their work's `wait`. They raise `CollectiveError`; what is not
    implemented raises NotImplementedError.
    """

    def __init__(self, given: Any, options: Any = None) -> None:
        """`given` is c10d's _DistributedBackendOptions; its ranks are empty for the world."""
        rank, size = given.group_rank, given.group_size
        super().__init__(rank, size)
        members = given.global_ranks_in_group or range(size)
        name = given.group_id or "default"
        self.host = HostGroup(given.store, rank, members, given.timeout, f"c10d {name}")
        self._name = ""

    def getBackendName(self) -> str:
        return "xla"

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        op, scale = average_as_sum(opts.reduceOp, self.host.size)
        staging.all_reduce_(self.host, tensors, op, scale)
        return _done(tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        op, scale = average_as_sum(opts.reduceOp, self.host.size)
        results = staging.reduced(self.host, tensors, op, scale)
        if self.host.rank == opts.rootRank:
            staging.write(tensors, results)
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

    def allgather_into_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._allgather_base(output, tensor)
        return _done(outputs)

    def gather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> Any:
        gathered = [staging.all_gather(self.host, tensor) for tensor in inputs]
        for targets, parts in zip(outputs, gathered, strict=False):  # none but on the root
            staging.write(targets, parts)
        return _done(outputs)

    def scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> Any:
        [output] = outputs
        nothing = output.new_empty(0)
        parts = inputs[0] if self.host.rank == opts.rootRank else [nothing] * self.host.size
        shapes = [output.shape if i == opts.rootRank else (0,) for i in range(self.host.size)]
        staging.write([output], [staging.exchange(self.host, parts, shapes)[opts.rootRank]])
        return _done(outputs)

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> Any:
        op, scale = average_as_sum(opts.reduceOp, self.host.size)
        for output, parts in zip(outputs, inputs, strict=True):
            reduced = staging.reduced(self.host, parts, op, scale)
            staging.write([output], [reduced[self.host.rank]])
        return _done(outputs)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Any:
        op, scale = average_as_sum(opts.reduceOp, self.host.size)
        [reduced] = staging.reduced(self.host, [tensor], op, scale)
        mine = reduced.reshape(self.host.size, -1)[self.host.rank]
        staging.write([output], [mine.view(output.shape)])
        return _done([output])

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, tensor, opts)
        return _done(outputs)

    def alltoall(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        staging.write(outputs, staging.exchange(self.host, inputs, [o.shape for o in outputs]))
        return _done(outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> Any:
        """Sizes are rows: of the first dimension; none means equal shares."""
        size = self.host.size
        rows = list(output_sizes) or [output.shape[0] // size] * size
        parts = torch.split(tensor, list(input_sizes) or [tensor.shape[0] // size] * size)
        shapes = [(count, *output.shape[1:]) for count in rows]
        staging.write([output], [torch.cat(staging.exchange(self.host, parts, shapes))])
        return _done([output])

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        waits: list[Callable[[], None]] = []

        def start(copies: list[torch.Tensor]) -> list[torch.Tensor]:
            waits.extend(self.host.send(copy, to, tag) for copy in copies)
            return copies

        staging.on_host(tensors, start)
        return _Pending(lambda: [wait() for wait in waits])

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        waits = [self.host.receive(tensor, source, tag) for tensor in tensors]
        return _Pending(lambda: staging.write(tensors, [wait() for wait in waits]))

    def barrier(self, opts: Any = None) -> Any:
        staging.barrier(self.host)
        return _done([])


class _Pending(dist.Work):  # type: ignore[misc]
    """A transfer that ends when it is waited for."""

    def __init__(self, finish: Callable[[], object]) -> None:
        super().__init__()
        self._finish: Callable[[], object] | None = finish

    def wait(self, timeout: Any = None) -> bool:
        if self._finish is not None:
            self._finish()
            self._finish = None
        return True

    def is_completed(self) -> bool:
        return self._finish is None


def average_as_sum(op: Any, size: int) -> tuple[Any, float]:
    """gloo has no average: a sum, scaled.

    Raises:
        NotImplementedError: `op` has no emulation (BXOR, PREMUL_SUM).
    """
    for plain in _PLAIN:
        if op == plain:
            return plain, 1.0
    if op == dist.ReduceOp.AVG:
        return dist.ReduceOp.SUM, 1.0 / size
    raise NotImplementedError(
        f"reduce operation {getattr(op, 'op', op)} is not emulated on CPU processes"
    )


def _refuse(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"torch.distributed.{name} of XLA tensors is not emulated on CPU processes"
        )

    return refuse


# The base class would answer these with an assertion about a missing backend.
for _method, _name in {
    "recv_anysource": "recv from any source",
    "allgather_coalesced": "all_gather_coalesced",
    "monitored_barrier": "monitored_barrier",
}.items():
    setattr(HostStagedProcessGroup, _method, _refuse(_name))


def _done(result: Any) -> Any:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    c10d: Any = torch._C._distributed_c10d
    return c10d._create_work_from_future(future)
