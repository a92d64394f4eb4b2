"""Step markers, optimizer steps and reads: the clock of everything else. Needs torch, torch_xla."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hotfire.runtime.xla.doctor.fallbacks import FallbackFinder
from hotfire.runtime.xla.doctor.recorder import Recorder
from hotfire.runtime.xla.doctor.replicas import Digests
from hotfire.runtime.xla.doctor.settings import SUMMARY_MARKS, Settings
from hotfire.runtime.xla.doctor.stack import Stack

# Optimizer steps without a marker after which the pending graph is taken to grow for ever.
UNMARKED_STEPS = 3
_READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__repr__",
          "__format__", "__index__")  # fmt: skip


class Steps:
    """Counts and times what happens between markers. One per process."""

    def __init__(self, settings: Settings, torch_xla: Any) -> None:
        self.settings = settings
        self.recorder = Recorder(settings.events)
        self.stack = Stack()
        self.marks = self.optimizer_steps = self.backwards = 0
        self.wait = 0.0
        """Seconds that the main thread waited for input since the last marker."""
        self.iterated = False
        """Whether a loader that we can end has yielded something."""
        self.texts: dict[Any, dict[str, Any]] = {}
        """What was tokenised, by line of the script; kept by `watch_text`."""
        self.loaders: dict[int, list[float]] = {}
        """Seconds that each loader took, and batches it made; kept by `watch_data`."""
        self.loader: int | None = None
        """The loader that gave the last batch."""
        self._trained_loaders: set[int] = set()
        self._xla = torch_xla
        self._xlac: Any = vars(torch_xla)["_XLAC"]
        self._unmarked: dict[int, int] = {}
        self._optimizers: set[int] = set()
        self._made: dict[int, Any] = {}
        self._reads: dict[tuple[Any, int], dict[str, Any]] = {}
        self._last = time.perf_counter()
        self._nodes = 0
        self._fallbacks: dict[str, int] = {}
        self._finder = FallbackFinder(self)
        self._digests = Digests(self)

    def watch(self) -> None:
        """Put the hooks in."""
        self._watch_markers()
        self._watch_reads()
        self._watch_construction()
        register_optimizer_step_pre_hook(self._before_optimizer)
        register_optimizer_step_post_hook(self._after_optimizer)
        backward: Any = torch.Tensor.backward

        @functools.wraps(backward)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.backwards += 1
            if self.loader is not None:
                self._trained_loaders.add(self.loader)
            return backward(*args, **kwargs)

        torch.Tensor.backward = counted  # type: ignore[method-assign]

    @property
    def detailed(self) -> bool:
        """Whether events are still written one by one."""
        return self.recorder.active and (not self.settings.summary or self.marks < SUMMARY_MARKS)

    @property
    def enough(self) -> bool:
        """Whether the wanted steps are done, and only what follows an epoch is of interest."""
        return self._wanted and self.optimizer_steps >= self.settings.steps

    @property
    def _wanted(self) -> bool:
        return self.settings.steps > 0 and self.recorder.active

    @property
    def _reading(self) -> bool:
        """Epochs that were cut short do not tell how often a script reads."""
        steps = self.settings.steps
        return self.detailed and not (steps and self.optimizer_steps > steps)

    def now(self) -> dict[str, int]:
        """The place of an event: markers, optimizer steps and backward passes so far."""
        return {"mark": self.marks, "opt": self.optimizer_steps, "back": self.backwards}

    # Markers.

    def sync(self) -> None:
        """A step marker of ours."""
        self._xla.sync()

    def _watch_markers(self) -> None:
        marker = self._xlac._xla_step_marker

        def step_marker(*args: Any, **kwargs: Any) -> Any:
            result = marker(*args, **kwargs)
            if not sys._getframe(1).f_code.co_filename.endswith("/runtime/xla/staging.py"):
                self._marked()
            return result

        self._xlac._xla_step_marker = step_marker

    def _marked(self) -> None:
        self._unmarked.clear()
        if self.detailed:
            self._digests.after_marker()
            self._write_mark()
        self.marks += 1
        self._end_when_done()

    def _write_mark(self) -> None:
        now = time.perf_counter()
        wait, self.wait = self.wait, 0.0
        self.recorder.write(
            "mark",
            **self.now(),
            seconds=round(now - self._last, 6),
            wait=round(wait, 6),
            trace=self._trace_size(),
            nodes=self._new_graph_sizes(),
            training=torch.is_grad_enabled(),
        )
        self._look_for_fallbacks()
        self._last = time.perf_counter()

    def _trace_size(self) -> int:
        try:
            return os.stat(self.settings.trace).st_size  # noqa: PTH116
        except OSError:
            return 0

    def _new_graph_sizes(self) -> list[int]:
        """IR nodes of each graph run since the last marker."""
        data = self._xlac._xla_metric_data("TensorsGraphSize")
        if data is None:
            return []
        count, samples = int(data[0]), data[2]
        new, self._nodes = count - self._nodes, count
        return [int(value) for _, value in samples[-new:]] if new else []

    def _end_when_done(self) -> None:
        """End the script where no loader's end can, or where it goes on for ever."""
        limit = self.settings.steps * (2 if self.iterated else 1)
        if self._wanted and self.optimizer_steps >= limit:
            raise SystemExit(0)

    # Operators without an XLA kernel.

    def fallback_counts(self) -> dict[str, int]:
        """How often each operator ran on the host; reading a scalar is no operator."""
        names = (n for n in self._xlac._xla_counter_names() if n.startswith("aten::"))
        return {
            name: self._xlac._xla_counter_value(name)
            for name in names
            if name != "aten::_local_scalar_dense"
        }

    def _look_for_fallbacks(self) -> None:
        counts = self.fallback_counts()
        self._finder.at_marker(risen=counts != self._fallbacks)
        self._fallbacks = counts

    # Optimizers.

    def _watch_construction(self) -> None:
        base: Any = torch.optim.Optimizer
        original = base.__init__

        @functools.wraps(original)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._made[id(optimizer)] = self.stack.site()

        base.__init__ = init

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self.recorder.active or not _on_device(optimizer):
            return
        if id(optimizer) not in self._optimizers:
            self.recorder.write(
                "optimizer",
                **self.now(),
                site=self.stack.site(),
                made=self._made.get(id(optimizer)),
                kind=type(optimizer).__name__,
                stateless=not optimizer.state,
                parameters=_placed(optimizer),
            )
            self._digests.add(optimizer)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self.recorder.active or not _on_device(optimizer):
            return
        if id(optimizer) not in self._optimizers:
            self._optimizers.add(id(optimizer))
            tensors = [v for state in optimizer.state.values() for v in state.values()]
            made = sum(isinstance(t, torch.Tensor) and t.device.type == "xla" for t in tensors)
            self.recorder.write("optimizer_state", **self.now(), tensors=made)
        if self._digests.leads(optimizer):
            self.optimizer_steps += 1
        self._count_unmarked(optimizer)

    def _count_unmarked(self, optimizer: torch.optim.Optimizer) -> None:
        count = self._unmarked[id(optimizer)] = self._unmarked.get(id(optimizer), 0) + 1
        if count != UNMARKED_STEPS:
            return
        self.recorder.write("unmarked", **self.now(), site=self.stack.site())
        if self._wanted:
            # Otherwise the graph of all steps would have to be compiled in one piece.
            self.sync()

    # Values read by the host.

    def _watch_reads(self) -> None:
        for name in _READS:
            setattr(torch.Tensor, name, self._counted_read(name, getattr(torch.Tensor, name)))

    def _counted_read(self, name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(read)
        def counted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor.device.type == "xla" and self._reading:
                self._count_read(name, sys._getframe(1))
            return read(tensor, *args, **kwargs)

        return counted

    def _count_read(self, name: str, frame: Any) -> None:
        key = frame.f_code, frame.f_lineno
        entry = self._reads.get(key)
        if entry is None:
            site = None if _in_closure(frame) else self.stack.site()
            entry = {"site": site, "method": name, "steps": 0, "last": -1, "count": 0}
            self._reads[key] = entry
        entry["count"] += 1
        if entry["last"] != self.optimizer_steps:
            entry["last"] = self.optimizer_steps
            entry["steps"] += 1

    def totals(self) -> dict[str, Any]:
        """What the end event says."""
        compiles = self._xlac._xla_metric_data("CompileTime") or (0, 0.0, ())
        executions = self._xlac._xla_metric_data("ExecuteTime") or (0, 0.0, ())
        return {
            **self.now(),
            "compilations": int(compiles[0]),
            "compile_seconds": compiles[1] / 1e9,
            "executions": int(executions[0]),
            "scalars": self._xlac._xla_counter_value("aten::_local_scalar_dense") or 0,
            "fallbacks": self.fallback_counts(),
            "reads": [entry for entry in self._reads.values() if entry["site"]],
            "texts": list(self.texts.values()),
            "loaders": self.loaders,
            "trained_loaders": sorted(self._trained_loaders),
            "trace": self._trace_size(),
        }


def _in_closure(frame: Any) -> bool:
    """Whether a step closure reads: its line is that of `xm.add_step_closure`."""
    while frame is not None:
        if frame.f_code.co_name == "_run_step_closures":
            return True
        frame = frame.f_back
    return False


def _on_device(optimizer: torch.optim.Optimizer) -> bool:
    return any(p.device.type == "xla" for group in optimizer.param_groups for p in group["params"])


def _placed(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Parameters by device type and data type: ``{"xla float32": 12}``."""
    counts: dict[str, int] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            key = f"{p.device.type} {str(p.dtype).removeprefix('torch.')}"
            counts[key] = counts.get(key, 0) + 1
    return counts
