"""Step markers and training steps: the clock of everything else. Needs torch and torch_xla."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from hotfire.runtime.xla.doctor.recorder import Recorder
from hotfire.runtime.xla.doctor.settings import SUMMARY_MARKS, Settings
from hotfire.runtime.xla.doctor.stack import Stack

_SAY_SECONDS = 10


class Steps:
    """Counts and times what happens between markers. One per process.

    Watchers add their work to `at_marker` (before a marker's event is written) and what the end
    event should say to `at_end`.
    """

    def __init__(self, settings: Settings, torch_xla: Any) -> None:
        self.settings = settings
        self.recorder = Recorder(settings.events)
        self.stack = Stack()
        self.xlac: Any = vars(torch_xla)["_XLAC"]
        self.at_marker: list[Callable[[], None]] = []
        self.at_end: list[Callable[[], dict[str, Any]]] = []
        self.marks = self.optimizer_steps = self.backwards = 0
        self.wait = 0.0
        """Seconds that the main thread waited for input since the last marker."""
        self.loader: int | None = None
        """The loader that gave the last batch."""
        self.iterated = False
        """Whether a loader that we can end has yielded something."""
        self._xla = torch_xla
        self._trained_loaders: set[int] = set()
        self._last = self._said = time.perf_counter()
        self._graphs = 0

    def watch(self) -> None:
        """Hook the step marker and `Tensor.backward`."""
        self._watch_markers()
        backward: Any = torch.Tensor.backward

        @functools.wraps(backward)
        def counted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.backwards += 1
            if tensor.dtype is torch.float64 and tensor.device.type == "xla" and self.detailed:
                self.recorder.write("double_loss", **self.now(), site=self.stack.site())
            if self.loader is not None:
                self._trained_loaders.add(self.loader)
            return backward(tensor, *args, **kwargs)

        torch.Tensor.backward = counted  # type: ignore[method-assign, assignment]

    @property
    def detailed(self) -> bool:
        """Whether events are still written one by one."""
        return self.recorder.active and (not self.settings.summary or self.marks < SUMMARY_MARKS)

    @property
    def limited(self) -> bool:
        """Whether this run is to end after some steps; never in a forked child."""
        return self.settings.steps > 0 and self.recorder.active

    @property
    def enough(self) -> bool:
        """Whether the wanted steps are done, and only what follows an epoch is of interest."""
        return self.limited and self.optimizer_steps >= self.settings.steps

    def now(self) -> dict[str, int]:
        """The place of an event: markers, optimizer steps and backward passes so far."""
        return {"mark": self.marks, "opt": self.optimizer_steps, "back": self.backwards}

    def sync(self) -> None:
        """A step marker of ours."""
        self._xla.sync()

    def _watch_markers(self) -> None:
        marker = self.xlac._xla_step_marker

        # By this name torch_xla's own account of a compilation knows a step's end.
        def mark_step(*args: Any, **kwargs: Any) -> Any:
            result = marker(*args, **kwargs)
            # The emulated collectives run what is pending; on a device that ends no step.
            if not sys._getframe(1).f_code.co_filename.endswith("/runtime/xla/staging.py"):
                self._marked()
            return result

        self.xlac._xla_step_marker = mark_step

    def _marked(self) -> None:
        for work in self.at_marker:
            work()
        if self.detailed:
            self._write_mark()
        self.marks += 1
        if self.limited and self.settings.rank == 0:
            self._say_progress()
        # Where no loader's end can end the script, or where it goes on for ever.
        limit = self.settings.steps * (2 if self.iterated else 1)
        if self.limited and self.optimizer_steps >= limit:
            raise SystemExit(0)

    def _say_progress(self) -> None:
        """A line every ten seconds: where compilations take minutes, nothing else moves."""
        now = time.perf_counter()
        if now - self._said >= _SAY_SECONDS:
            self._said = now
            compiled, seconds = self._compilations()
            print(
                f"hotfire: doctor: {self.optimizer_steps} of {self.settings.steps} steps, "
                f"{compiled} compilations in {seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    def _compilations(self) -> tuple[int, float]:
        """Their number, and the seconds that they took."""
        compiles = self.xlac._xla_metric_data("CompileTime") or (0, 0.0, ())
        return int(compiles[0]), compiles[1] / 1e9

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
        )
        self._last = time.perf_counter()

    def _trace_size(self) -> int:
        try:
            return os.stat(self.settings.trace).st_size  # noqa: PTH116
        except OSError:
            return 0

    def _new_graph_sizes(self) -> list[int]:
        """IR nodes of each graph run since the last marker."""
        data = self.xlac._xla_metric_data("TensorsGraphSize")
        if data is None:
            return []
        count, samples = int(data[0]), data[2]
        new, self._graphs = count - self._graphs, count
        return [int(value) for _, value in samples[-new:]] if new else []

    def totals(self) -> dict[str, Any]:
        """What the end event says."""
        compilations, seconds = self._compilations()
        found = {
            **self.now(),
            "compilations": compilations,
            "compile_seconds": seconds,
            "trained_loaders": sorted(self._trained_loaders),
            "trace": self._trace_size(),
        }
        for facts in self.at_end:
            found |= facts()
        return found
