"""The part of botocore's SageMaker service model that CreateTrainingJob reaches, read without importing botocore.

Importing botocore costs more time than the whole command may take. So its data file is read directly: once, for the
shapes and the traits that matter here; the extract is cached.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hotfire.runtime.errors import PlatformError

ROOT = "CreateTrainingJobRequest"
EXTRACTOR = 1
"""Version of the extract's form; part of the cache's key."""

Shapes = Mapping[str, Mapping[str, Any]]
"""Shape name to ``type``, ``members``, ``required``, ``min``, ``max``, ``pattern``, ``enum``, ``member``, ``key``, ``value``."""


def load(cache_dir: Path | None = None) -> Shapes:
    """The shapes that CreateTrainingJobRequest reaches, without documentation.

    Args:
        cache_dir: where the extract is kept between processes; None: read botocore's file every time. A damaged entry
            is rebuilt, and a directory that cannot be written is no error.

    Raises:
        PlatformError: botocore, a dependency of hotfire, is not there or is not what it was.
    """
    return _load(str(cache_dir) if cache_dir else None)


@cache
def _load(cache_dir: str | None) -> Shapes:
    package = _botocore()
    entry = None
    if cache_dir:
        entry = Path(cache_dir) / f"service-model-{_version(package)}-{EXTRACTOR}.json"
        if (shapes := _read_entry(entry)) is not None:
            return shapes
    shapes = extract(_read_model(package))
    if entry:
        _write_entry(entry, shapes)
    return shapes


def _botocore() -> Path:
    """botocore's directory, without importing it."""
    from importlib.util import find_spec

    spec = find_spec("botocore")
    if spec is None or not spec.submodule_search_locations:
        raise PlatformError("botocore is not installed.", do="Install hotfire again.")
    return Path(next(iter(spec.submodule_search_locations)))


def _version(package: Path) -> str:
    # importlib.metadata costs 20 ms to import.
    text = (package / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r"""^__version__ = ['"]([\w.+\-]+)['"]""", text, re.MULTILINE)
    return found[1] if found else "unknown"


def _read_model(package: Path) -> Mapping[str, Any]:
    found = sorted((package / "data" / "sagemaker").glob("*/service-2.json*"))
    if not found:
        raise PlatformError(
            f"botocore in {package} has no SageMaker service model.", do="Install botocore again."
        )
    data = found[-1].read_bytes()
    if found[-1].suffix == ".gz":
        import gzip

        data = gzip.decompress(data)
    model: Mapping[str, Any] = json.loads(data)
    return model


def extract(model: Mapping[str, Any], root: str = ROOT) -> Shapes:
    """The closure of ``root``: types, members, required, ranges, patterns, enums; no documentation."""
    every: Shapes = model["shapes"]
    found: dict[str, Mapping[str, Any]] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        shape = every[name]
        kept: dict[str, Any] = {
            key: shape[key]
            for key in ("type", "required", "min", "max", "pattern", "enum")
            if key in shape
        }
        if "members" in shape:
            kept["members"] = {key: member["shape"] for key, member in shape["members"].items()}
            waiting.extend(kept["members"].values())
        for key in ("member", "key", "value"):
            if key in shape:
                kept[key] = shape[key]["shape"]
                waiting.append(kept[key])
        found[name] = kept
    return found


def _read_entry(entry: Path) -> Shapes | None:
    try:
        shapes = json.loads(entry.read_bytes())
    except (OSError, ValueError):
        return None
    return shapes if _is_closed(shapes) else None


def _is_closed(shapes: Any) -> bool:
    """Whether every shape that is spoken of is there."""
    try:
        named = {ROOT}
        for shape in shapes.values():
            named.update(shape.get("members", {}).values())
            named.update(shape[key] for key in ("member", "key", "value") if key in shape)
        return bool(shapes[ROOT]["members"]) and all("type" in shapes[name] for name in named)
    except (AttributeError, KeyError, TypeError):
        return False


def _write_entry(entry: Path, shapes: Shapes) -> None:
    """Whole or not at all: a reader at the same moment sees the old entry or the new one."""
    partial = entry.with_name(f"{entry.name}.{os.getpid()}.partial")
    text = json.dumps(shapes, separators=(",", ":"))
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(entry)
    except OSError:
        try:
            partial.unlink(missing_ok=True)
        except OSError:
            return


def enum_values(shape_name: str, cache_dir: Path | None = None) -> tuple[str, ...]:
    """The values of an enum of the model, e.g. ``TrainingInstanceType``."""
    return tuple(load(cache_dir)[shape_name]["enum"])
