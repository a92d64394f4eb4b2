"""Compiled XLA programs kept on disk between jobs, where the device can load them (standard library only).

On a CPU they cannot be loaded: torch_xla 2.9 writes them and then warns at each one
"Deserializing serialized executable not supported" (counter PersistentCacheDeserializeFailure).
Neuron has a cache of its own (NEURON_COMPILE_CACHE_URL).
"""

# pathlib would be half of what a trivial script pays for this module.
# ruff: noqa: PTH103, PTH118

from __future__ import annotations

import os
from collections.abc import MutableMapping

PATH = "XLA_PERSISTENT_CACHE_PATH"
"""Read by torch_xla at its first computation; `torch_xla.runtime.initialize_cache` sets it too."""

_DEVICES = ("GPU", "CUDA", "TPU")


def prepare(environment: MutableMapping[str, str]) -> None:
    """Have torch_xla keep its programs below HOTFIRE_COMPILE_CACHE; the user's own path stays.

    One directory per release of torch_xla, which is no part of its keys.
    """
    device = environment.get("PJRT_DEVICE", "")
    chosen = environment.get("HOTFIRE_COMPILE_CACHE", "")
    if not chosen or device not in _DEVICES or PATH in environment:
        return
    from importlib.metadata import version  # as long as the start of Python itself

    directory = os.path.join(chosen, f"xla-{version('torch_xla')}-{device.lower()}")
    os.makedirs(directory, exist_ok=True)
    environment[PATH] = directory
