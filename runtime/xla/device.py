"""`DeviceEnv`: what a training loop asks of the device below it. Needs torch.

One class per kind of device: `XlaEnv` (torch_xla on CPU, NVIDIA through PJRT, Neuron) is here,
`TorchEnv` (plain torch, eager or Inductor, CPU or CUDA) in `torch_device`. The loop does not know
which it has; another kind is one more subclass and one line in `open_device`.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from hotfire.runtime.xla.host_group import HostGroup, world_group
from hotfire.runtime.xla.world import World

Batch = dict[str, torch.Tensor]
COMPILERS = ("xla", "inductor", "none")


class DeviceEnv(ABC):
    """One process's device and its place among the job's processes.

    What concerns the hosts alone (agreeing, adding up, waiting) is the same for every kind and
    goes through host memory, so that it neither changes nor waits for the device's program.
    """

    device: torch.device

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def world_size(self) -> int:
        return self.world.size

    @property
    def local_rank(self) -> int:
        return self.world.local_rank

    @property
    def is_main(self) -> bool:
        """Whether this process prints, and writes what exists once."""
        return self.rank == 0

    # What differs between devices.

    @abstractmethod
    def autocast(self, enabled: bool) -> contextlib.AbstractContextManager[Any]:
        """bfloat16 where it is safe; parameters and optimizer states stay float32."""

    @abstractmethod
    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """`loader`'s batches on the device; asking for the next one ends a step."""

    @abstractmethod
    def after_step(self, closure: Callable[..., None], *arguments: Any) -> None:
        """Run `closure` at the end of the step, when reading its tensors costs no evaluation."""

    @abstractmethod
    def reduce_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Replace every gradient by its mean over the ranks."""

    @abstractmethod
    def broadcast_parameters(self, model: torch.nn.Module) -> None:
        """Give every rank rank 0's parameters and buffers."""

    @abstractmethod
    def sync(self, *, wait: bool = False) -> None:
        """End a step: launch pending work, run closures, and with `wait` await the device."""

    @abstractmethod
    def to_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """CPU copies of `tensors`, in one transfer where the device can."""

    @abstractmethod
    def device_rng_state(self) -> int | torch.Tensor | None:
        """The state of the device's own random generator; None when it has none."""

    @abstractmethod
    def set_device_rng_state(self, state: Any) -> None:
        """Restore what `device_rng_state` returned."""

    def fix_randomness(self, seed: int) -> None:
        """Make the device's random numbers from here on a function of `seed`, where needed."""
        return

    def compiled(self, model: torch.nn.Module) -> torch.nn.Module:
        """`model` as this device wants to call it."""
        return model

    def optimizer_step(
        self, optimizer: torch.optim.Optimizer, *, max_grad_norm: float | None = None
    ) -> None:
        """Reduce gradients, clip their global norm after that, update the parameters."""
        self.reduce_gradients(optimizer)
        if max_grad_norm:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
        optimizer.step()

    # What is the same for every device: the hosts' control plane.

    @property
    def _hosts(self) -> HostGroup | None:
        return world_group() if self.world_size > 1 else None

    def barrier(self) -> None:
        """Return when every rank has called this."""
        if self._hosts:
            self._hosts.barrier()

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any rank; all get the same answer at the same step."""
        if not self._hosts:
            return flag
        [total] = self._hosts.all_reduce_([torch.tensor([float(flag)])])
        return bool(total.item() > 0)

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Each value added up over the ranks, in double precision; same keys on every rank."""
        if not self._hosts:
            return dict(values)
        [totals] = self._hosts.all_reduce_([torch.tensor(list(values.values())).double()])
        return dict(zip(values, totals.tolist(), strict=True))

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Every rank's `payload`, by rank."""
        return self._hosts.gather_bytes(payload) if self._hosts else [payload]

    def broadcast_bytes(self, payload: bytes | None) -> bytes:
        """Rank 0's `payload`; the others pass None."""
        if self._hosts:
            return self._hosts.broadcast_bytes(payload, 0)
        assert payload is not None
        return payload

    def seed(self, value: int) -> None:
        """Seed torch's generators on the host and on the device."""
        torch.manual_seed(value)

    def host_copy(self, value: Any) -> Any:
        """`value` (nested dicts, lists, tuples) with every tensor copied to the CPU."""
        found: list[torch.Tensor] = []
        _map_tensors(value, found.append)
        self.sync(wait=True)
        copies = iter(self.to_host(found))
        return _map_tensors(value, lambda _: next(copies))

    def save(self, value: Any, path: Path) -> None:
        """`torch.save` of `value` on the CPU, by the main process alone; all ranks call it."""
        copied = self.host_copy(value)
        if self.is_main:
            torch.save(copied, path)

    def close(self) -> None:
        """Leave the job's process groups."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class XlaEnv(DeviceEnv):
    """torch_xla on whatever PJRT_DEVICE names: CPU, an NVIDIA plugin, Neuron.

    Raises:
        WorldSizeMismatch: torchrun started several processes and torch_xla sees another number.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        from hotfire.runtime.xla import cpu_collectives, guard, shims

        shims.prepare_environment()
        import torch_xla
        import torch_xla.core.xla_model as xm
        from torch_xla.distributed import parallel_loader

        # Untyped on purpose: torch_xla's own annotations are partial.
        self._xla: Any = torch_xla
        self._xm: Any = xm
        self._parallel_loader: Any = parallel_loader.ParallelLoader
        if world.size > 1:
            cpu_collectives.install()
            _init_process_group("xla", init_method="xla://")
            guard.check_world()
        self.device = torch_xla.device()

    def autocast(self, enabled: bool) -> contextlib.AbstractContextManager[Any]:
        # torch_xla.amp.autocast refuses CPU; torch's own knows the device type.
        return torch.autocast("xla", dtype=torch.bfloat16, enabled=enabled)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """As MpDeviceLoader does (upload in the background), and closed when left early."""
        parallel = self._parallel_loader(loader, [self.device])
        try:
            yield from parallel.per_device_loader(self.device)
        finally:
            parallel.close()

    def after_step(self, closure: Callable[..., None], *arguments: Any) -> None:
        self._xm.add_step_closure(closure, args=arguments)

    def reduce_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        self._xm.reduce_gradients(optimizer)

    def broadcast_parameters(self, model: torch.nn.Module) -> None:
        if self.world_size > 1:
            self._xm.broadcast_master_param(model)

    def sync(self, *, wait: bool = False) -> None:
        self._xla.sync(wait=wait)
        if wait:
            self._xm.wait_device_ops()

    def to_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        on_device = [t for t in tensors if t.device.type == "xla"]
        copies = iter(self._xla._XLAC._xla_get_cpu_tensors(on_device) if on_device else [])
        return [next(copies) if t.device.type == "xla" else t.detach().clone() for t in tensors]

    def device_rng_state(self) -> int | torch.Tensor | None:
        return int(self._xm.get_rng_state())

    def set_device_rng_state(self, state: Any) -> None:
        self._xm.set_rng_state(int(state))

    def fix_randomness(self, seed: int) -> None:
        # torch_xla advances its seed at every step marker, so that a checkpoint or an evaluation
        # in between would change the dropout of all later steps.
        self._xm.set_rng_state(seed)

    def seed(self, value: int) -> None:
        super().seed(value)
        self._xm.set_rng_state(value)


def open_device(compiler: str = "auto", environment: Mapping[str, str] | None = None) -> DeviceEnv:
    """The device of this process.

    `compiler` is "xla", "inductor" or "none" (eager); "auto" is what the launcher decided
    (HOTFIRE_COMPILER), else xla where torch_xla is installed and USE_TORCH_XLA is not 0 (the
    switch that transformers reads too), else none.

    Raises:
        ValueError: an unknown compiler.
    """
    environment = os.environ if environment is None else environment
    if compiler == "auto":
        compiler = environment.get("HOTFIRE_COMPILER") or (
            "xla" if _xla_wanted(environment) else "none"
        )
    world = World.from_environment(environment)
    if compiler == "xla":
        return XlaEnv(world)
    if compiler in COMPILERS:
        from hotfire.runtime.xla.torch_device import TorchEnv

        return TorchEnv(world, inductor=compiler == "inductor")
    raise ValueError(f"unknown compiler {compiler!r}: it is one of auto, {', '.join(COMPILERS)}")


def _xla_wanted(environment: Mapping[str, str]) -> bool:
    from importlib.util import find_spec

    switch = environment.get("USE_TORCH_XLA", "1").upper()
    return switch not in {"0", "FALSE", "NO", "OFF"} and find_spec("torch_xla") is not None


def _init_process_group(backend: str, **options: Any) -> None:
    import torch.distributed as dist

    from hotfire.runtime.xla.calls import default_timeout

    if not dist.is_initialized():
        dist.init_process_group(backend, timeout=default_timeout(), **options)


def _map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_map_tensors(item, change) for item in value)
    return value
