"""Which corrections a training script gets under our launcher, and when (standard library only).

Nothing here imports torch_xla or transformers. `watch_imports` waits for the script's own first
import of a module and then installs, in this order,

after ``torch_xla``:

- ``compat``: what torch_xla removed and older scripts call (`hotfire.runtime.xla.compat`)
- ``collectives``: data parallelism over CPU processes (`hotfire.runtime.xla.cpu_collectives`)
- ``spawn``: ``xmp.spawn`` inside workers that are already started (`hotfire.runtime.xla.spawn`)
- ``guard``: no training when the worlds disagree (`hotfire.runtime.xla.guard`)
- ``doctor``: what compiles again, stalls or goes wrong (`hotfire.runtime.xla.doctor`)

after modules of ``transformers``, when torch_xla is in use:

- ``hf_optimizer``: the Trainer's default optimizer (`hotfire.runtime.xla.hf_optimizer`)
- ``hf_attention``: a model's default attention (`hotfire.runtime.xla.hf_attention`)

and at the end of the script

- ``mp_fn``: calls the ``_mp_fn(index)`` of scripts for a launcher (`hotfire.runtime.xla.spawn`)

``HOTFIRE_SHIMS="-compat,-guard"`` leaves some out.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import PathFinder

from hotfire.runtime.xla.after_import import after_import

VARIABLE = "HOTFIRE_SHIMS"
# What is imported -> the shims that then go in: name -> module with `install() -> str | None`.
AFTER_IMPORT = {
    "torch_xla": {
        "compat": "compat",
        "collectives": "cpu_collectives",
        "spawn": "spawn",
        "guard": "guard",
        "doctor": "doctor.collector",
    },
    "transformers.training_args": {"hf_optimizer": "hf_optimizer"},
    "transformers.modeling_utils": {"hf_attention": "hf_attention"},
}
NAMES = (*(name for shims in AFTER_IMPORT.values() for name in shims), "mp_fn")
_installed: dict[str, list[str]] = {}


def selected(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The shims to install, in order.

    Raises:
        ValueError: HOTFIRE_SHIMS holds something else than ``-name`` entries.
    """
    entries = [e.strip() for e in environment.get(VARIABLE, "").split(",") if e.strip()]
    off = {e.removeprefix("-") for e in entries}
    if any(not e.startswith("-") for e in entries) or not off <= set(NAMES):
        raise ValueError(
            f"{VARIABLE}={environment[VARIABLE]!r} is not a list of switched-off shims; "
            f"write for example -{',-'.join(NAMES)}"
        )
    return tuple(name for name in NAMES if name not in off)


def install(environment: Mapping[str, str], imported: str = "torch_xla") -> list[str]:
    """Install the selected shims that belong to the module `imported`, once; one line at rank 0.

    Returns:
        What went in, each entry ``name (what it did)``.
    """
    if imported in _installed:
        return _installed[imported]
    done = _installed[imported] = []
    wanted = selected(environment)
    for name, module in AFTER_IMPORT[imported].items():
        if name in wanted:
            what: str | None = import_module(f"hotfire.runtime.xla.{module}").install()
            if what:
                done.append(f"{name} ({what})")
    if done:
        say(f"{imported.partition('.')[0]} shims: {'; '.join(done)}; off by {VARIABLE}=-NAME")
    return done


def say(line: str) -> None:
    """One line of the log, from rank 0 alone."""
    if (os.environ.get("RANK") or "0") == "0":
        print(f"hotfire: {line}", file=sys.stderr, flush=True)


def watch_imports() -> None:
    """Have the shims installed when something imports their modules; at once if it has."""
    selected(os.environ)
    for name in AFTER_IMPORT:
        before = [prepare_environment] if name == "torch_xla" else []
        after_import(name, functools.partial(_after_import, name), *before)


def _after_import(name: str) -> None:
    """transformers is corrected only where it uses torch_xla, which it then has imported."""
    if "torch_xla" in sys.modules:
        install(os.environ, name)


def prepare_environment() -> None:
    """What torch_xla finds when it is imported.

    PJRT_DEVICE is CPU where torch_xla would fall back to it, with a warning per worker. On CPU
    random bits come from the cheapest generator: with the default one, dropout costs a BERT step
    half as much again (measured on two cores: 1.06 s, 0.78 s, and 0.69 s without dropout). Freed
    memory is kept: see `hotfire.runtime.xla.host_memory`.
    """
    vendor = ("libneuronxla", "libtpu")
    if "PJRT_DEVICE" not in os.environ and not any(PathFinder.find_spec(name) for name in vendor):
        os.environ["PJRT_DEVICE"] = "CPU"
    if os.environ.get("PJRT_DEVICE") == "CPU":
        os.environ.setdefault("XLA_RNG_BIT_GENERATOR", "three_fry")
        from hotfire.runtime.xla import host_memory  # ctypes costs two milliseconds

        host_memory.keep_freed(os.environ)
