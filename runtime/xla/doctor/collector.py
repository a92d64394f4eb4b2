"""The shim "doctor": watches a training script from inside. Needs torch and torch_xla.

Nothing is asked of the device and no stack is walked unless something happened that a finding is
made from: a new input shape, a value read by the host, a save. Step markers write one line each.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from typing import Any

from hotfire.runtime.xla.doctor import (
    watch_calls,
    watch_data,
    watch_fallbacks,
    watch_files,
    watch_optimizers,
    watch_reads,
    watch_text,
)
from hotfire.runtime.xla.doctor.settings import Settings
from hotfire.runtime.xla.doctor.watch_steps import Steps

_TRACE_FRAMES = "60"
_WATCHERS = (
    watch_optimizers,
    watch_fallbacks,
    watch_reads,
    watch_calls,
    watch_data,
    watch_files,
    watch_text,
)


def install() -> str | None:
    """Start to watch this worker; returns what the log says of it."""
    import torch_xla

    settings = Settings.from_environment(os.environ)
    _ask_for_trace(settings)
    steps = Steps(settings, torch_xla)
    steps.recorder.write("start", **_start(settings, steps))
    steps.watch()
    for watcher in _WATCHERS:
        watcher.watch(steps)
    atexit.register(_finish, steps)
    if settings.summary:
        return "a summary at the end"
    return f"watches {settings.steps} steps"


def _ask_for_trace(settings: Settings) -> None:
    """torch_xla reads these at its first compilation. A user's own choice of a summary's stays."""
    if settings.summary and "PT_XLA_DEBUG_LEVEL" in os.environ:
        return
    # Level 1 names compilations, level 2 every execution.
    os.environ["PT_XLA_DEBUG_LEVEL"] = "1" if settings.summary else "2"
    os.environ["PT_XLA_DEBUG_MAX_FRAME"] = _TRACE_FRAMES
    os.environ["PT_XLA_DEBUG_FILE"] = settings.trace
    with open(settings.trace, "wb"):  # noqa: PTH123
        pass  # torch_xla appends; an earlier attempt's trace is not this one's


def _start(settings: Settings, steps: Steps) -> dict[str, Any]:
    script = os.path.abspath(sys.argv[0])  # noqa: PTH100
    root = os.environ.get("SM_MODULE_DIR", "")
    below = os.path.isdir(root) and script.startswith(root.rstrip("/") + "/")  # noqa: PTH112
    return {
        "rank": settings.rank,
        "world_size": settings.world_size,
        "steps": settings.steps,
        "script": script,
        "root": root.rstrip("/") if below else os.path.dirname(script),  # noqa: PTH120
        "argv": sys.argv[1:],
        "libraries": steps.stack.libraries,
    }


def _finish(steps: Steps) -> None:
    """At the end of the process, however Python got there."""
    if not steps.recorder.active:
        return
    steps.recorder.write("end", **steps.totals(), error=_error(steps), files=_user_files(steps))
    steps.recorder.stop()
    settings = steps.settings
    if settings.summary and settings.rank == 0 and steps.optimizer_steps:
        _print_summary(settings)
    if settings.temporary:
        shutil.rmtree(settings.directory, ignore_errors=True)


def _print_summary(settings: Settings) -> None:
    from hotfire.runtime.xla.doctor.summary import text

    try:
        print(text(settings.directory), file=sys.stderr)
    except Exception as error:  # noqa: BLE001 (a job that trained well must not end with ours)
        print(f"hotfire: no XLA summary: {type(error).__name__}: {error}", file=sys.stderr)


def _error(steps: Steps) -> dict[str, Any] | None:
    """The exception that ends the script."""
    error = getattr(sys, "last_value", None)
    if not isinstance(error, Exception):
        return None
    return steps.stack.described(error)


def _user_files(steps: Steps) -> list[str]:
    """Python files of the script that were loaded."""
    loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted({file for file in loaded if file and steps.stack.is_user(file)})
