"""The line of an operator that XLA has no kernel for. Needs torch.

Its counter rises without a word of where. After a step in which one rose, the next step runs below
a function mode that looks at the counters after every call: slow, and only for that step.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch.overrides import TorchFunctionMode

from hotfire.runtime.xla.doctor.recorder import Recorder
from hotfire.runtime.xla.doctor.stack import Stack

# Steps that are looked at; after that the counters alone go on.
_LOOKS = 2


class Watched(Protocol):
    recorder: Recorder
    stack: Stack

    def fallback_counts(self) -> dict[str, int]: ...
    def now(self) -> dict[str, int]: ...


class FallbackFinder:
    """Turns a `_Mode` on when a counter has risen, and its looking off after `_LOOKS` steps."""

    def __init__(self, steps: Watched) -> None:
        self._steps = steps
        self._mode: _Mode | None = None
        self._looks = 0

    def at_marker(self, *, risen: bool) -> None:
        """After each step; `risen` says whether operators ran on the host in it."""
        if self._mode is not None:
            self._looks += 1
            self._mode.counting = self._looks < _LOOKS
        elif risen:
            self._mode = _Mode(self._steps)
            self._mode.__enter__()  # type: ignore[no-untyped-call]


class _Mode(TorchFunctionMode):
    """Stays entered, since a script's own modes may lie above it by the time it has done its work."""

    def __init__(self, steps: Watched) -> None:
        super().__init__()
        self.counting = True
        self._steps = steps
        self._seen: set[Any] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.counting:
            return func(*args, **(kwargs or {}))
        before = self._steps.fallback_counts()
        result = func(*args, **(kwargs or {}))
        after = self._steps.fallback_counts()
        for name, count in after.items():
            if count > before.get(name, 0):
                self._found(name, backward=getattr(func, "__name__", "") == "backward")
        return result

    def _found(self, name: str, *, backward: bool) -> None:
        site = self._steps.stack.site()
        if (name, site) not in self._seen:
            self._seen.add((name, site))
            facts = {"op": name.removeprefix("aten::"), "site": site, "backward": backward}
            self._steps.recorder.write("fallback", **self._steps.now(), **facts)
