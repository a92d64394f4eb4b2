"""Numbers that tell whether the ranks' parameters are equal. Needs torch and torch_xla.

Parameters are read where that costs no graph: as they are before the first optimizer step, and at
a marker after it.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from hotfire.runtime.xla.doctor.watch_steps import Steps

# Of one optimizer; more would say nothing new.
_TENSORS = 64
_ELEMENTS = 1 << 20
_LATER_STEPS = 2


class Digests:
    """Reads the parameters of the first optimizer twice, in jobs of several workers."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._optimizer: torch.optim.Optimizer | None = None
        self._wanted = False

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Before the first step of an optimizer."""
        if self._optimizer is None:
            self._optimizer = optimizer
            self._wanted = self._steps.settings.world_size > 1
            if self._wanted:
                self._write("initial")

    def leads(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this is the optimizer whose steps are counted."""
        return optimizer is self._optimizer

    def at_marker(self) -> None:
        """At a marker: once more when a few steps have been made."""
        if self._wanted and self._steps.optimizer_steps >= _LATER_STEPS:
            self._wanted = False
            self._write("later")

    def _write(self, when: str) -> None:
        assert self._optimizer is not None
        groups = self._optimizer.param_groups
        tensors = [p.detach() for group in groups for p in group["params"]][:_TENSORS]
        values = [_projection(t) for t in _to_host(tensors)]
        self._steps.recorder.write("digest", **self._steps.now(), when=when, values=values)


def _to_host(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    import torch_xla

    xlac: Any = vars(torch_xla)["_XLAC"]
    on_device = [t for t in tensors if t.device.type == "xla"]
    copies = iter(xlac._xla_get_cpu_tensors(on_device) if on_device else [])
    return [next(copies) if t.device.type == "xla" else t for t in tensors]


def _projection(tensor: torch.Tensor) -> list[float]:
    """A weighted sum in which every element counts, and the sum of magnitudes to compare it with."""
    flat = tensor.reshape(-1)[:_ELEMENTS].double()
    weights = torch.arange(1, len(flat) + 1, dtype=torch.float64).mul_(math.sqrt(2)).frac_()
    return [float(flat @ weights), float(flat.abs().sum())]
