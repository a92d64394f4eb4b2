"""What the launcher adds to a script for the compiler that the job chose (standard library only).

Read from the environment, before the script starts:

- HOTFIRE_COMPILER: a script that does not go along with the choice is told so, once
- HOTFIRE_COMPILER_DEBUG=1: the compiler's own files (`hotfire.runtime.xla.compiler_debug`)
- HOTFIRE_COMPILE_CACHE: compiled programs are kept there (`hotfire.runtime.xla.compile_cache`)
- HOTFIRE_MEASURE_STEPS: steps are timed, and end there (`hotfire.runtime.xla.measure`)

A script that never imports torch runs unchanged.
"""

from __future__ import annotations

import os
import sys

from hotfire.runtime.xla.after_import import after_import

TYPE_CHECKING = False  # typing would cost every script two milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    StepHook = Callable[[Any], None]
    """Called after each step of the script's first optimizer, with that optimizer."""

_TELL_AT_STEP = 3
"""XLA and Inductor have seen the whole training step by then."""


def prepare() -> None:
    """Put in place what the environment asks for; cheap when it asks for nothing."""
    environment = os.environ
    hooks: list[StepHook] = []
    compiler = environment.get("HOTFIRE_COMPILER", "none")
    if environment.get("HOTFIRE_COMPILER_DEBUG") == "1":
        from hotfire.runtime.xla import compiler_debug

        hooks += compiler_debug.prepare(compiler, environment)
    if compiler != "none" and (environment.get("RANK") or "0") == "0":
        hooks.append(_Disagreement(compiler))
    if environment.get("HOTFIRE_MEASURE_STEPS"):
        from hotfire.runtime.xla import measure

        hooks.append(measure.recorder(environment))
    if environment.get("HOTFIRE_COMPILE_CACHE"):
        from hotfire.runtime.xla import compile_cache

        compile_cache.prepare(environment)
    if hooks:
        after_import("torch.optim.optimizer", lambda: _watch_steps(hooks))


def _watch_steps(hooks: list[StepHook]) -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    first: list[int] = []

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            # The script compiles its optimizer: what counts here would compile again at every step.
            return
        # Scripts with several optimizers (GANs) step each of them once per training step.
        if not first:
            first.append(id(optimizer))
        if first[0] == id(optimizer):
            for hook in hooks:
                hook(optimizer)

    register_optimizer_step_post_hook(stepped)


class _Disagreement:
    """Says in one line, at the third step, that the script does not use the job's compiler."""

    def __init__(self, compiler: str) -> None:
        self._compiler = compiler
        self._steps = 0

    def __call__(self, optimizer: Any) -> None:
        self._steps += 1
        if self._steps != _TELL_AT_STEP:
            return
        device = parameters(optimizer)[0].device.type
        if text := disagreement(self._compiler, device, inductor_graphs()):
            print(f"hotfire: {text}", file=sys.stderr, flush=True)


def disagreement(compiler: str, device: str, graphs: int) -> str:
    """One line for a script that trains on `device` with `graphs` Inductor graphs; else nothing."""
    if compiler == "xla" and device != "xla":
        return (
            f"the job's compiler is xla, but the script trains on {device}: nothing is compiled. "
            "Use torch_xla.device() in the script, or --compiler none"
        )
    if compiler == "inductor" and graphs == 0:
        return (
            "the job's compiler is inductor, but the script has compiled nothing: "
            "write model = torch.compile(model) in the script, or use --compiler none"
        )
    return ""


def parameters(optimizer: Any) -> list[Any]:
    """What `optimizer` updates, at least one parameter; single groups may be empty."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def inductor_graphs() -> int:
    """Graphs that torch.compile has made in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0
