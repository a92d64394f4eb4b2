"""Checkpoints as single files that appear whole, the last few kept. Needs torch.

A checkpoint is ``checkpoint-<step, 8 digits>.pt`` in /opt/ml/checkpoints, written under a
temporary name that the platform's uploader skips, then renamed. The uploader's own markers are
respected: what it is sending is not deleted under it (contract 5.7).
"""

from __future__ import annotations

import io
import os
import random
import re
from pathlib import Path
from typing import Any

import torch

from hotfire.runtime.xla.device import DeviceEnv

# The uploader skips names containing this (contract 5.7).
IGNORED = ".sagemaker-ignore"
UPLOADING = ".sagemaker-uploading"
_NAME = re.compile(r"checkpoint-(\d{8,})\.pt")


def saved_steps(directory: Path) -> list[int]:
    """The steps with a complete checkpoint, ascending; empty when there is no directory."""
    if not directory.is_dir():
        return []
    found = (_NAME.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match[1]) for match in found if match)


def path_of(directory: Path, step: int) -> Path:
    return directory / f"checkpoint-{step:08d}.pt"


def write(directory: Path, step: int, state: Any, *, keep: int) -> Path:
    """Save `state` as the checkpoint of `step`; afterwards only the last `keep` remain.

    Raises:
        OSError: the directory cannot be written; earlier checkpoints are untouched.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = path_of(directory, step)
    temporary = directory / f"{path.name}{IGNORED}-{os.getpid()}"
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _prune(directory, keep)
    return path


def read(directory: Path, step: int) -> Any:
    """The state of `step`, on the CPU. Only tensors and plain values are read, never code."""
    return _load(path_of(directory, step))


def _load(file: Path | io.BytesIO) -> Any:
    return torch.load(file, map_location="cpu", weights_only=True)


def _prune(directory: Path, keep: int) -> None:
    for step in saved_steps(directory)[: -max(keep, 1)]:
        path = path_of(directory, step)
        if not path.with_name(path.name + UPLOADING).exists():
            path.unlink(missing_ok=True)


def gather_rng_states(env: DeviceEnv) -> list[dict[str, Any]]:
    """The random generators of every rank (Python's, torch's, the device's), by rank."""
    version, words, gauss = random.getstate()
    mine = {
        "python": [version, list(words), gauss],
        "torch": torch.get_rng_state(),
        "device": env.device_rng_state(),
    }
    file = io.BytesIO()
    torch.save(mine, file)
    return [_load(io.BytesIO(part)) for part in env.gather_bytes(file.getvalue())]


def restore_rng_state(env: DeviceEnv, states: list[dict[str, Any]]) -> None:
    """This rank's part of `gather_rng_states`; kept as seeded when the number of ranks changed."""
    if len(states) != env.world_size:
        return
    state = states[env.rank]
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(state["torch"])
    env.set_device_rng_state(state["device"])


def broadcast_latest(env: DeviceEnv, directory: Path) -> Any | None:
    """The newest checkpoint that rank 0 sees, on every rank; None when it sees none.

    Hosts whose own directory lacks that file get its bytes from rank 0: only a job with a
    CheckpointConfig has its checkpoints copied to every host.
    """
    steps = saved_steps(directory)
    latest = int(env.broadcast_bytes(str(steps[-1] if steps else -1).encode()))
    if latest < 0:
        return None
    path = path_of(directory, latest)
    if env.any(not path.is_file()):
        data = env.broadcast_bytes(path.read_bytes() if env.is_main else None)
        return _load(io.BytesIO(data))
    return read(directory, latest)
