"""`TorchEnv`: plain torch below the same loop, eager or compiled by Inductor, CPU or CUDA."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hotfire.runtime.xla.device import Batch, DeviceEnv, _init_process_group
from hotfire.runtime.xla.world import World


class TorchEnv(DeviceEnv):
    """CUDA where a GPU is visible (one per local rank), else the CPU."""

    def __init__(self, world: World, *, inductor: bool) -> None:
        super().__init__(world)
        self._inductor = inductor
        if torch.cuda.is_available():
            self.device = torch.device("cuda", world.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        else:
            self.device = torch.device("cpu")
        if world.size > 1 and self.device.type == "cuda":
            _init_process_group("nccl")
        self._closures: list[Callable[[], None]] = []

    def autocast(self, enabled: bool) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        for batch in loader:
            self.sync()
            yield {name: tensor.to(self.device) for name, tensor in batch.items()}
        self.sync()

    def after_step(self, closure: Callable[..., None], *arguments: Any) -> None:
        self._closures.append(lambda: closure(*arguments))

    def reduce_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        if self.world_size == 1:
            return
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        gradients = [p.grad for p in parameters if p.grad is not None]
        self._exchange(gradients, mean=True)

    def broadcast_parameters(self, model: torch.nn.Module) -> None:
        if self.world_size > 1:
            tensors = [*model.parameters(), *model.buffers()]
            self._exchange([t.detach() for t in tensors], mean=False)

    def _exchange(self, tensors: Sequence[torch.Tensor], *, mean: bool) -> None:
        """Mean over the ranks, or rank 0's values; in place."""
        if self._hosts is not None and self.device.type == "cpu":
            if mean:
                results = self._hosts.all_reduce_(tensors, scale=1.0 / self.world_size)
            else:
                results = self._hosts.broadcast_(tensors, 0)
            for tensor, result in zip(tensors, results, strict=True):
                tensor.copy_(result)
            return
        for tensor in tensors:
            if mean:
                dist.all_reduce(tensor, dist.ReduceOp.AVG)
            else:
                dist.broadcast(tensor, 0)

    def sync(self, *, wait: bool = False) -> None:
        closures, self._closures = self._closures, []
        for closure in closures:
            closure()
        if wait and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def to_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [t.detach().to("cpu", copy=True) for t in tensors]

    def device_rng_state(self) -> int | torch.Tensor | None:
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None

    def set_device_rng_state(self, state: Any) -> None:
        if state is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.device)

    def compiled(self, model: torch.nn.Module) -> torch.nn.Module:
        if not self._inductor:
            return model
        return torch.compile(model)  # type: ignore[return-value]
