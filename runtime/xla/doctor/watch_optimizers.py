"""Optimizer steps: what they make, whether markers follow, whether the ranks stay equal.

Needs torch. The first optimizer that steps counts the training's steps.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hotfire.runtime.xla.doctor.replicas import Digests
from hotfire.runtime.xla.doctor.watch_steps import Steps

# Steps of one optimizer without a marker after which the graph is taken to grow for ever.
_UNMARKED_STEPS = 3


def watch(steps: Steps) -> None:
    """Hook the construction and the steps of all optimizers."""
    optimizers = _Optimizers(steps)
    optimizers.watch_construction()
    register_optimizer_step_pre_hook(optimizers.before_step)
    register_optimizer_step_post_hook(optimizers.after_step)
    steps.at_marker.append(optimizers.at_marker)


class _Optimizers:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._digests = Digests(steps)
        self._made: dict[int, Any] = {}
        self._stepped: set[int] = set()
        self._unmarked: dict[int, int] = {}

    def watch_construction(self) -> None:
        base: Any = torch.optim.Optimizer
        original = base.__init__

        @functools.wraps(original)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._made[id(optimizer)] = self._steps.stack.site()

        base.__init__ = init

    def at_marker(self) -> None:
        self._unmarked.clear()
        if self._steps.detailed:
            self._digests.at_marker()

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        steps = self._steps
        if not steps.recorder.active or not _on_device(optimizer):
            return
        if id(optimizer) not in self._stepped:
            steps.recorder.write(
                "optimizer",
                **steps.now(),
                site=steps.stack.site(),
                made=self._made.get(id(optimizer)),
                kind=type(optimizer).__name__,
                stateless=not optimizer.state,
            )
            self._digests.add(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        steps = self._steps
        if not steps.recorder.active or not _on_device(optimizer):
            return
        if id(optimizer) not in self._stepped:
            self._stepped.add(id(optimizer))
            tensors = [v for state in optimizer.state.values() for v in state.values()]
            made = sum(isinstance(t, torch.Tensor) and t.device.type == "xla" for t in tensors)
            steps.recorder.write("optimizer_state", **steps.now(), tensors=made)
        if self._digests.leads(optimizer):
            steps.optimizer_steps += 1
        self._count_unmarked(optimizer)

    def _count_unmarked(self, optimizer: torch.optim.Optimizer) -> None:
        count = self._unmarked[id(optimizer)] = self._unmarked.get(id(optimizer), 0) + 1
        if count != _UNMARKED_STEPS:
            return
        self._steps.recorder.write("unmarked", **self._steps.now(), site=self._steps.stack.site())
        if self._steps.limited:
            # Otherwise the graph of all steps would have to be compiled in one piece.
            self._steps.sync()


def _on_device(optimizer: torch.optim.Optimizer) -> bool:
    return any(p.device.type == "xla" for group in optimizer.param_groups for p in group["params"])
