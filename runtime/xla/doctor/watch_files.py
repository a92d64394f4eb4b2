"""Saves and logging. Needs torch and torch_xla."""

from __future__ import annotations

import functools
import time
from typing import Any

import torch

from hotfire.runtime.xla.doctor.watch_steps import Steps

_OBJECTS = 20_000


def watch(steps: Steps) -> None:
    """Write a "save" event for `torch.save` and `xm.save`, a "closure" one per step closure."""
    import torch_xla.core.xla_model as xm

    nested = False

    def watched(kind: str, original: Any) -> Any:
        @functools.wraps(original)
        def save(data: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal nested
            if nested or not steps.recorder.active:
                return original(data, file, *args, **kwargs)
            nested = True
            site, device = steps.stack.site(), _on_device(data)
            started = time.perf_counter()
            try:
                return original(data, file, *args, **kwargs)
            finally:
                nested = False
                seconds = time.perf_counter() - started
                path = file if isinstance(file, str) else getattr(file, "name", None)
                facts = {"kind": kind, "site": site, "device": device, "path": path}
                steps.recorder.write("save", **steps.now(), **facts, seconds=round(seconds, 4))

        return save

    torch.save = watched("torch.save", torch.save)
    xm.save = watched("xm.save", xm.save)
    _watch_closures(steps, xm)


def _watch_closures(steps: Steps, xm: Any) -> None:
    original = xm.add_step_closure

    @functools.wraps(original)
    def add_step_closure(*args: Any, **kwargs: Any) -> Any:
        if steps.detailed:
            steps.recorder.write("closure", **steps.now(), site=steps.stack.site())
        return original(*args, **kwargs)

    xm.add_step_closure = add_step_closure


def _on_device(data: Any) -> bool:
    """Whether a tensor on an XLA device is somewhere in `data`."""
    waiting, looked = [data], 0
    while waiting and looked < _OBJECTS:
        value = waiting.pop()
        looked += 1
        if isinstance(value, torch.Tensor):
            if value.device.type == "xla":
                return True
        elif isinstance(value, torch.nn.Module):
            waiting += [*value.parameters(), *value.buffers()]
        elif isinstance(value, dict):
            waiting += list(value.values())
        elif isinstance(value, list | tuple | set):
            waiting += list(value)
    return False
