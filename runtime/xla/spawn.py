"""Scripts written for a launcher that starts their processes: ``xmp.spawn`` and ``_mp_fn(index)``.

Here the job starts the workers (torchrun, or one process), so a script's own ``xmp.spawn`` calls
its function in place, and a script that only defines ``_mp_fn`` for ``xla_spawn.py`` has it called.
"""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from hotfire.runtime.xla import shims
from hotfire.runtime.xla.world import World


def install() -> str | None:
    """Make ``xmp.spawn`` run its function in the worker that calls it. Needs torch_xla."""
    from torch_xla._internal import pjrt

    size = World.from_environment(os.environ).size
    original: Callable[..., Any] = pjrt.spawn

    @functools.wraps(original)
    def spawn(
        fn: Callable[..., Any],
        nprocs: int | None = None,
        start_method: str = "spawn",
        args: tuple[Any, ...] = (),
    ) -> Any:
        if nprocs not in (None, size):
            shims.say(
                f"xmp.spawn(nprocs={nprocs}) runs in this job's {size} worker(s); "
                f"--processes-per-host {nprocs} starts that many"
            )
        if size == 1:
            return original(fn, nprocs and 1, start_method, args)
        return fn(int(os.environ.get("RANK") or 0), *args)

    pjrt.spawn = spawn
    return "xmp.spawn calls its function in the started workers"


def call_mp_fn(script: ModuleType) -> None:
    """Call the `script`'s ``_mp_fn(index)`` when it was written for a launcher to do so.

    ``xla_spawn.py SCRIPT`` imports SCRIPT and calls its ``_mp_fn``; started as ``__main__``, a
    script without an ``if __name__ == "__main__"`` of its own would do nothing.
    """
    path = getattr(script, "__file__", None)
    if path is None or _starts_itself(path):
        return
    shims.say("shim mp_fn: the script starts nothing itself, so its _mp_fn(index) is called")
    vars(script)["_mp_fn"](int(os.environ.get("RANK") or 0))


def _starts_itself(path: str) -> bool:
    """Whether the script asks for its ``__name__``, or mentions ``_mp_fn`` beyond defining it."""
    with open(path, "rb") as file:  # noqa: PTH123 (exec's own start-up avoids pathlib)
        tree = ast.parse(file.read())
    nodes = list(ast.walk(tree))
    asked = [
        operand for n in nodes if isinstance(n, ast.Compare) for operand in (n.left, *n.comparators)
    ]
    return _mentions(asked, "__name__") or _mentions(nodes, "_mp_fn")


def _mentions(nodes: Iterable[ast.AST], name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in nodes)
