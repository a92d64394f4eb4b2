"""Values that the host reads from the device, counted by line. Needs torch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from hotfire.runtime.xla.doctor.watch_steps import Steps

_METHODS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__repr__",
            "__format__", "__index__")  # fmt: skip


def watch(steps: Steps) -> None:
    """Hook the methods of tensors that end on the host; the end event has the lines."""
    reads = _Reads(steps)
    for name in _METHODS:
        setattr(torch.Tensor, name, reads.counted(name, getattr(torch.Tensor, name)))
    steps.at_end.append(reads.facts)


class _Reads:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._lines: dict[Any, dict[str, Any]] = {}

    def counted(self, name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(read)
        def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor.device.type == "xla" and self._counts:
                self._count(name, sys._getframe(1))
            return read(tensor, *args, **kwargs)

        return counting

    @property
    def _counts(self) -> bool:
        """Epochs that were cut short do not tell how often a script reads."""
        wanted = self._steps.settings.steps
        return self._steps.detailed and not (wanted and self._steps.optimizer_steps > wanted)

    def _count(self, name: str, frame: FrameType) -> None:
        key = frame.f_code, frame.f_lineno
        entry = self._lines.get(key)
        if entry is None:
            site = None if _in_closure(frame) else self._steps.stack.site()
            entry = {"site": site, "method": name, "steps": 0, "last": -1, "count": 0}
            self._lines[key] = entry
        entry["count"] += 1
        if entry["last"] != self._steps.optimizer_steps:
            entry["last"] = self._steps.optimizer_steps
            entry["steps"] += 1

    def facts(self) -> dict[str, Any]:
        return {"reads": [entry for entry in self._lines.values() if entry["site"]]}


def _in_closure(frame: FrameType | None) -> bool:
    """Whether a step closure reads: its line is that of `xm.add_step_closure`."""
    while frame is not None:
        if frame.f_code.co_name == "_run_step_closures":
            return True
        frame = frame.f_back
    return False
