"""NVIDIA GPUs as torch_xla's device "GPU", through the CUDA PJRT plugin that jax's packages carry.

torch_xla loads this through the entry point group ``torch_xla.plugins``. Experimental: torch_xla 2.9.0 speaks PJRT
C API 0.75, as jax-cuda12-pjrt 0.7.1 does, and neither project tests the pair. So the first process of a machine that
asks for the device runs :mod:`hotfire.runtime.xla.gpu_selftest` before its own client exists, and refuses on mismatch.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_xla.experimental.plugins import DevicePlugin

from hotfire.runtime.errors import ValidationError

SELFTEST = "HOTFIRE_GPU_SELFTEST"
"""``0`` leaves the self-test out; the self-test sets it for itself."""
_LIBRARY = "xla_cuda_plugin.so"
_SECONDS = 600


class CudaPlugin(DevicePlugin):
    """One GPU for each local process of torchrun; all of them for a process of its own."""

    def library_path(self) -> str:
        """The plugin's shared library, after the machine has passed the self-test."""
        path = library()
        if os.environ.get(SELFTEST) != "0":
            ensure_tested(path, tempfile.gettempdir(), os.environ)
        return str(path)

    def physical_chip_count(self) -> int:
        return int(os.environ.get("GPU_NUM_DEVICES") or _gpus())

    def configure_single_process(self) -> None:
        """Nothing to set: the options below say it all."""

    def client_create_options(self) -> dict[str, Any]:
        return options(os.environ)

    def requires_xla_coordinator(self) -> bool:
        return _number(os.environ, "WORLD_SIZE", 1) > 1


def options(environ: Mapping[str, str]) -> dict[str, Any]:
    """The client's options. The platform is "gpu": with "cuda" torch_xla 2.9 aborts on every tensor. Pure."""
    local, on_host = _number(environ, "LOCAL_RANK", 0), _number(environ, "LOCAL_WORLD_SIZE", 1)
    chosen: dict[str, Any] = {
        "platform_name": "gpu",
        "allocator": environ.get("PJRT_ALLOCATOR", "default"),
        "node_id": _number(environ, "RANK", 0),
        "num_nodes": _number(environ, "WORLD_SIZE", 1),
    }
    if on_host > 1:
        chosen["visible_devices"] = [local]
    return chosen


def library() -> Path:
    """Where jax-cuda12-pjrt put its library.

    Raises:
        ValidationError: it is not installed.
    """
    spec = importlib.util.find_spec("jax_plugins")
    for folder in (spec and spec.submodule_search_locations) or ():
        for found in sorted(Path(folder).glob(f"xla_cuda*/{_LIBRARY}")):
            return found
    raise ValidationError(
        "there is no CUDA PJRT plugin in this Python.",
        do="pip install jax-cuda12-pjrt==0.7.1 nvidia-cuda-nvcc-cu12==12.8.93",
    )


def ensure_tested(path: Path, folder: str, environ: Mapping[str, str]) -> None:
    """Run the self-test once for each library and machine boot; local ranks wait for the one that runs it.

    Raises:
        ValidationError: the device computes wrongly, or not at all.
    """
    stamp = path.stat()
    mark = Path(folder) / f"hotfire-gpu-{os.getuid()}-{stamp.st_size}-{stamp.st_mtime_ns}"
    with mark.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if file.read() == "passed":
            return
        # One process of its own: it must not hold the GPU's memory when ours begins.
        clean = {
            name: value
            for name, value in environ.items()
            if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
        }
        done = subprocess.run(
            [sys.executable, "-m", "hotfire.runtime.xla.gpu_selftest"],
            env={**clean, SELFTEST: "0"},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            tail = (done.stderr or done.stdout).strip()[-2000:]
            raise ValidationError(
                f"the GPU did not pass hotfire's self-test (exit code {done.returncode}):\n{tail}",
                do="Train with Inductor (--compiler inductor in the built-in program) or on the CPU; "
                f"{SELFTEST}=0 leaves the test out.",
            )
        print(f"hotfire: {done.stdout.strip()}", file=sys.stderr, flush=True)
        file.seek(0)
        file.truncate()
        file.write("passed")


def _gpus() -> int:
    return sum(name.name[6:].isdecimal() for name in Path("/dev").glob("nvidia[0-9]*"))


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    return int(environ.get(name) or default)
