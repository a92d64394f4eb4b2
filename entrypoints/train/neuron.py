"""What Neuron's compiler, its runtime and EFA are told where the user has told them nothing.

Sources: the Neuron SDK's guides to the compiler cache, to multi-node training with EFA and to host memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from hotfire.runtime.layout import MlTree
from hotfire.runtime.training_env import Launch

_FAMILIES = ("NEURON_", "FI_", "MALLOC_", "CCOM_")
_CACHE = "NEURON_COMPILE_CACHE_URL"
_FLAGS = "NEURON_CC_FLAGS"
OPEN_FILES = 65536
"""Descriptors that the runtime and the collectives of a large instance may need at once."""


def settings(given: Mapping[str, str], launch: Launch, cache: str) -> dict[str, str]:
    """The compiler's and the allocator's defaults; ``cache`` is :func:`cache_directory`'s. Pure."""
    # A compilation that failed once, for want of memory perhaps, is kept in the cache as failed.
    flags = "--retry_failed_compilation"
    chosen = {
        # Without it glibc keeps an arena for each of the compiler's many threads: gigabytes of the host's memory.
        "MALLOC_ARENA_MAX": "64",
    }
    if launch.built_in:
        # Only of our own program is it known that it trains a transformer.
        flags = f"--model-type=transformer {flags}"
        chosen["NEURON_FUSE_SOFTMAX"] = "1"
    # In the flags a directory takes precedence over the variable.
    if cache and "--cache_dir" not in given.get(_FLAGS, ""):
        chosen[_CACHE] = cache
    return {_FLAGS: flags, **chosen}


def cache_directory(tree: MlTree, host: str, environment: Mapping[str, str]) -> str:
    """Where compiled programs outlive this container: with the checkpoints, else in hotfire's cache; "" for nowhere.

    One directory per host, since the cache's locks do not hold on network file systems; hidden, since scripts look
    whether there are checkpoints by listing their directory.
    """
    if kept := checkpoints(tree):
        return f"{kept}/.neuron-compile-cache/{host}"
    kept = environment.get("HOTFIRE_COMPILE_CACHE") or (
        f"{environment['HOTFIRE_CACHE']}/compile" if environment.get("HOTFIRE_CACHE") else ""
    )
    return f"{kept}/neuron/{host}" if kept else ""


def checkpoints(tree: MlTree) -> str:
    """The directory that outlives this container; "" for a job without a CheckpointConfig."""
    try:
        config = json.loads(tree.checkpointconfig.read_text(encoding="utf-8"))
        return str(config["LocalPath"]).rstrip("/")
    except (OSError, ValueError, LookupError, TypeError):
        return str(tree.checkpoints) if tree.checkpoints.is_dir() else ""


def report(given: Mapping[str, str], chosen: Mapping[str, str]) -> str:
    """Which of ``chosen``, the workers' variables, are ours and which the user's."""
    names = sorted(name for name in chosen if name.startswith(_FAMILIES))
    ours = [f"{name}={chosen[name]}" for name in names if name not in given]
    kept = [name for name in names if name in given]
    parts = [f"set {', '.join(ours)}"] if ours else []
    parts += [f"kept your {', '.join(kept)}"] if kept else []
    return f"Neuron: {'; '.join(parts)}"


def cores(instance_type: str, dev: Path = Path("/dev")) -> int:
    """NeuronCores by their device files, where there is no ``neuron-ls`` to ask.

    Two for each chip; four on Trainium 2 and 3, whose eight physical cores work in pairs unless told otherwise.
    """
    chips = [path for path in dev.glob("neuron*") if re.fullmatch(r"neuron\d+", path.name)]
    return len(chips) * (4 if re.match(r"(ml\.)?trn[23]", instance_type) else 2)
