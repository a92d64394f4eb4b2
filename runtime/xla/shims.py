"""Which corrections torch_xla needs under our launcher, and when they go in (standard library only).

Nothing here imports torch_xla. `watch_torch_xla` waits for the script's own first import of it and
then installs, in this order:

- ``compat``: names that torch_xla removed and older scripts call (`hotfire.runtime.xla.compat`)
- ``collectives``: data parallelism over CPU processes (`hotfire.runtime.xla.cpu_collectives`)
- ``guard``: no training when the worlds disagree (`hotfire.runtime.xla.guard`)

``HOTFIRE_SHIMS="-compat,-guard"`` leaves some out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

NAMES = ("compat", "collectives", "guard")
VARIABLE = "HOTFIRE_SHIMS"
_MODULES = {"compat": "compat", "collectives": "cpu_collectives", "guard": "guard"}
_installed: list[str] = []


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


def install(environment: Mapping[str, str]) -> list[str]:
    """Install the selected shims into the imported torch_xla, once; one line to stderr at rank 0.

    Returns:
        What went in, each entry ``name (what it did)``.
    """
    if _installed:
        return _installed
    for name in selected(environment):
        done: str | None = import_module(f"hotfire.runtime.xla.{_MODULES[name]}").install()
        if done:
            _installed.append(f"{name} ({done})")
    if _installed and (environment.get("RANK") or "0") == "0":
        names = "; ".join(_installed)
        print(f"hotfire: torch_xla shims: {names}; off by {VARIABLE}=-NAME", file=sys.stderr)
    return _installed


def watch_torch_xla() -> None:
    """Have the shims installed when something imports torch_xla; at once if it is imported."""
    selected(os.environ)
    if "torch_xla" in sys.modules:
        install(os.environ)
    else:
        sys.meta_path.insert(0, _TorchXlaFinder())


class _TorchXlaFinder:
    """Finds torch_xla as Python would, and adds our work to the end of its execution."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch_xla":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_then_install(module: ModuleType) -> None:
            prepare_environment()
            execute(module)
            install(os.environ)

        # On the instance: everything else a loader can do (resources, source) stays as it is.
        vars(spec.loader)["exec_module"] = execute_then_install
        return spec


def prepare_environment() -> None:
    """What torch_xla reads from the environment when it is imported.

    PJRT_DEVICE is CPU where torch_xla would fall back to it, with a warning per worker. On CPU
    random bits come from the cheapest generator: with the default one, dropout costs a BERT step
    half as much again (measured on two cores: 1.06 s, 0.78 s, and 0.69 s without dropout).
    """
    vendor = ("libneuronxla", "libtpu")
    if "PJRT_DEVICE" not in os.environ and not any(PathFinder.find_spec(name) for name in vendor):
        os.environ["PJRT_DEVICE"] = "CPU"
    if os.environ.get("PJRT_DEVICE") == "CPU":
        os.environ.setdefault("XLA_RNG_BIT_GENERATOR", "three_fry")
