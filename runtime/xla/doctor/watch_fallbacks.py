"""Operators that XLA has no kernel for, and their lines. Needs torch and torch_xla.

torch_xla counts them without a word of where. After a step in which a counter rose, the next step
runs below a function mode that looks at the counters after every call: slow, and only for that step.
"""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode

from hotfire.runtime.xla.doctor.watch_steps import Steps

# Steps that are looked at; after that the counters alone go on.
_LOOKS = 2


def watch(steps: Steps) -> None:
    """Look at the counters at every marker; the end event has them all."""
    fallbacks = _Fallbacks(steps)
    steps.at_marker.append(fallbacks.at_marker)
    steps.at_end.append(lambda: {"fallbacks": fallbacks.counts()})


class _Fallbacks:
    """Turns a `_Mode` on when a counter has risen, and its looking off after `_LOOKS` steps."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._before: dict[str, int] = {}
        self._mode: _Mode | None = None
        self._looks = 0

    def counts(self) -> dict[str, int]:
        """How often each operator ran on the host; reading a scalar is no operator."""
        xlac = self._steps.xlac
        return {
            name: xlac._xla_counter_value(name)
            for name in xlac._xla_counter_names()
            if name.startswith("aten::") and name != "aten::_local_scalar_dense"
        }

    def at_marker(self) -> None:
        if self._mode is not None:
            self._looks += 1
            self._mode.counting = self._looks < _LOOKS
        elif self._steps.detailed:
            before, self._before = self._before, self.counts()
            if self._before != before:
                self._mode = _Mode(self)
                self._mode.__enter__()  # type: ignore[no-untyped-call]

    def found(self, name: str, *, backward: bool) -> None:
        """Write where operator `name` ran; `backward` if autograd called it."""
        facts = {"op": name.removeprefix("aten::"), "site": self._steps.stack.site()}
        self._steps.recorder.write("fallback", **self._steps.now(), **facts, backward=backward)


class _Mode(TorchFunctionMode):
    """Stays entered: a script's own modes may lie above it by the time it has done its work."""

    def __init__(self, fallbacks: _Fallbacks) -> None:
        super().__init__()
        self.counting = True
        self._fallbacks = fallbacks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.counting:
            return func(*args, **(kwargs or {}))
        before = self._fallbacks.counts()
        result = func(*args, **(kwargs or {}))
        for name, count in self._fallbacks.counts().items():
            if count > before.get(name, 0):
                called = getattr(func, "__name__", "")
                self._fallbacks.found(name, backward=called == "backward")
        return result
