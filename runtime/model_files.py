"""What a model directory holds, judged by file names and headers alone: warnings for a job's receipt."""

from __future__ import annotations

import fnmatch
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hotfire.runtime.storage import human

_OPTIMIZER = (
    "optimizer*.pt",
    "optimizer*.bin",
    "optimizer*.pth",
    "scheduler.pt",
    "rng_state*.pth",
    "*.optim",
    "*_optim_states.pt",
    "*.optimizer",
)
_CHECKPOINTS = ("checkpoint-*", "global_step*")
"""Directories that the Hugging Face Trainer and DeepSpeed make for resuming."""

_WEIGHTS = (
    "model.safetensors",
    "pytorch_model.bin",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "tf_model.h5",
    "flax_model.msgpack",
)
"""File names that from_pretrained looks for (transformers.utils: WEIGHTS_NAME and its siblings)."""

_MAX_HEADER = 100 << 20
"""The safetensors format's own limit on its JSON header, bytes."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    files: int
    bytes: int
    largest: tuple[tuple[str, int], ...]
    warnings: tuple[str, ...]


def inspect(*model_dirs: Path) -> Inspection:
    """Look at the model directories of all hosts as the one that the archive will hold."""
    found: dict[str, Path] = {}
    for top in model_dirs:
        found |= {path.relative_to(top).as_posix(): path for path in _walk(top)}
    sizes = {name: path.stat().st_size for name, path in found.items()}
    largest = sorted(sizes.items(), key=lambda one: (-one[1], one[0]))[:5]
    return Inspection(
        files=len(sizes),
        bytes=sum(sizes.values()),
        largest=tuple(largest),
        warnings=tuple(_warnings(found, sizes)),
    )


def _walk(top: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(top):
        for name in names:
            path = Path(directory, name)
            if path.is_file():
                yield path


def _warnings(found: Mapping[str, Path], sizes: Mapping[str, int]) -> Iterator[str]:
    if not found:
        yield (
            "the model directory is empty: there will be no model.tar.gz; save the model to SM_MODEL_DIR"
        )
        return
    yield from _optimizer_states(sizes)
    folders = {str(PurePosixPath(name).parent) for name in found}
    for folder in sorted(folders):
        names = {
            PurePosixPath(name).name: path
            for name, path in found.items()
            if str(PurePosixPath(name).parent) == folder
        }
        yield from _folder(folder, names)


def _optimizer_states(sizes: Mapping[str, int]) -> Iterator[str]:
    states = {name: size for name, size in sizes.items() if _is_state(name)}
    if states:
        first = max(states, key=lambda name: states[name])
        yield (
            f"training state inside the model: {human(sum(states.values()))} in {len(states)} files "
            f"({first} ...); checkpoints belong in /opt/ml/checkpoints"
        )


def _is_state(name: str) -> bool:
    *folders, file = PurePosixPath(name).parts
    return any(fnmatch.fnmatchcase(file, pattern) for pattern in _OPTIMIZER) or any(
        fnmatch.fnmatchcase(folder, pattern) for folder in folders for pattern in _CHECKPOINTS
    )


def _folder(folder: str, names: Mapping[str, Path]) -> Iterator[str]:
    where = "the model directory" if folder == "." else f"{folder}/"
    cannot = f"from_pretrained cannot load {where}:"
    weights = [name for name in _WEIGHTS if name in names]
    if "config.json" in names:
        config, fault = _read_json(names["config.json"])
        if fault and weights:
            yield f"{cannot} config.json {fault}"
        elif _of_transformers(config) and not weights:
            yield f"{cannot} config.json without weights ({_WEIGHTS[0]} or {_WEIGHTS[1]})"
    elif weights and "adapter_config.json" not in names:
        yield f"{cannot} {weights[0]} without config.json"
    for name in weights:
        if name.endswith(".index.json"):
            yield from (f"{cannot} {text}" for text in _missing_shards(name, names))
    for name, path in sorted(names.items()):
        if fault := _broken(path):
            yield f"{cannot} {name} {fault}"


def _of_transformers(config: Any) -> bool:
    """config.json is a common name; these keys are transformers' own."""
    return isinstance(config, dict) and bool(
        {"model_type", "architectures", "transformers_version"} & set(config)
    )


def _read_json(path: Path) -> tuple[Any, str]:
    try:
        return json.loads(path.read_bytes()), ""
    except OSError as error:
        return None, f"cannot be read ({error.strerror})"
    except ValueError:
        return None, "is not JSON"


def _missing_shards(index: str, names: Mapping[str, Path]) -> Iterator[str]:
    content, fault = _read_json(names[index])
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if fault or not isinstance(shards, dict):
        yield f"{index} {fault or 'has no weight_map'}"
        return
    missing = sorted({str(shard) for shard in shards.values()} - set(names))
    if missing:
        yield f"{index} names {len(missing)} files that are not there ({missing[0]} ...)"


def _broken(path: Path) -> str:
    """Why a weights file cannot be whole, or nothing."""
    try:
        if path.suffix == ".safetensors":
            return _broken_safetensors(path)
        if path.suffix in (".bin", ".pt", ".pth"):
            return _broken_torch(path)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return ""


def _broken_safetensors(path: Path) -> str:
    """Eight bytes of header length, a JSON header, then tensors up to the largest data_offsets: the whole file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            return "is cut off inside its header"
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"]
            needed = 8 + length + max(ends, default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return "has no safetensors header"
    if size < needed:
        return f"is cut off: {size} of {needed} bytes"
    return ""


def _broken_torch(path: Path) -> str:
    """torch.save writes a zip file, whose directory is at its end."""
    with path.open("rb") as file:
        start = file.read(2)
    if not start:
        return "is empty"
    if start == b"PK" and not zipfile.is_zipfile(path):
        return "is cut off"
    return ""
