"""Which backend a job gets here: by instance type, then by image; the first pattern that fits wins, and fields add up.

Without rules every job is a process of this machine: its TrainingImage says which framework the job expects, and is
not pulled. A rule with ``backend: docker`` runs the image itself, or the local one of ``image:``.
"""

from __future__ import annotations

import fnmatch
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotfire.runtime import documents, instances, preparation
from hotfire.runtime.control import Trigger
from hotfire.runtime.endpoint import images
from hotfire.runtime.errors import ValidationError
from hotfire.runtime.rehearse import Rehearsal
from hotfire.runtime.surroundings import Options

FIELDS: Mapping[str, type] = {
    "backend": str,
    "network": str,
    "python": str,
    "processes_per_host": int,
    "image": str,
    "limits": bool,
    "rehearse": str,
    "interrupt_after": str,
}
_OF_INSTANCES: Mapping[str, type] = {**FIELDS, "memory_gib": int}
"""``memory_gib``: of one instance, where the endpoint counts memory."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a request becomes here: its options, the image to run if not the one asked for, and lines for its log."""

    options: Options
    image: str = ""
    """Replaces TrainingImage where it is not empty."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rules:
    """``options``: for every job; ``instances`` and ``images``: shell pattern to fields of :data:`FIELDS`."""

    options: Options = field(default_factory=Options)
    instances: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    images: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def choose(self, request: Mapping[str, Any]) -> Choice:
        """The choice for a request whose shape need not have been checked yet."""
        algorithm = _mapping(request.get("AlgorithmSpecification"))
        resources = _mapping(request.get("ResourceConfig"))
        groups = resources.get("InstanceGroups")
        first = groups[0] if isinstance(groups, list) and groups else resources
        asked = str(algorithm.get("TrainingImage", ""))
        kind = str(_mapping(first).get("InstanceType", ""))
        fields = {**_first(self.instances, kind), **_first(self.images, asked)}
        image = str(fields.pop("image", ""))
        fields.pop("memory_gib", None)
        if not request.get("EnableManagedSpotTraining"):
            fields.pop("interrupt_after", None)  # only spot jobs are interrupted
        options = replace(self.options, **fields)
        return Choice(
            options=options, image=image, notes=tuple(_notes(asked, image, kind, options))
        )

    def memory_gib(self, kind: str) -> float | None:
        """Of an instance of that type: what a rule says, else what is known of it."""
        known = instances.table().get(kind)
        found = _first(self.instances, kind).get("memory_gib", known and known.memory_gib)
        return None if found is None else float(found)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _first(patterns: Mapping[str, Mapping[str, Any]], value: str) -> dict[str, Any]:
    for pattern, fields in patterns.items():
        if fnmatch.fnmatchcase(value, pattern):
            return dict(fields)
    return {}


def _notes(asked: str, image: str, kind: str, options: Options) -> list[str]:
    if not asked:
        return []
    known = images.container(asked)
    what = f"TrainingImage {asked}" + (f" ({known})" if known else "")
    if options.backend == "docker":
        return [f"{what}: the job runs in containers of {image or asked}"]
    told = [
        f"{what} is not pulled: the job runs as a process of this machine with {options.python}"
    ]
    if known:
        versions = preparation.versions_of(options.python)
        python = platform.python_version() if options.python == sys.executable else ""
        told += images.differences(known, versions, python)
        if known.device == "neuron" and not kind.startswith(("ml.trn", "ml.inf")):
            told.append(f"the image is made for Neuron devices, and {kind} has none")
    return told


def load(path: Path | None, options: Options) -> Rules:
    """The rules of a YAML or JSON file with ``instances`` and ``images``; None: there are none.

    Raises:
        ValidationError: the file cannot be read or says something unknown.
    """
    if path is None:
        return Rules(options=options)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationError(
            f"{path} cannot be read: {error}.", do="Give a YAML file with `instances` and `images`."
        ) from error
    raw = documents.load_text(text, str(path))
    if not isinstance(raw, Mapping) or set(raw) - {"instances", "images"}:
        raise ValidationError(f"{path}: only `instances` and `images` are known.")
    tables = {
        name: {
            str(pattern): _fields(path, fields, _OF_INSTANCES if name == "instances" else FIELDS)
            for pattern, fields in (raw[name] or {}).items()
        }
        for name in raw
    }
    return Rules(options=options, **tables)


def _fields(path: Path, raw: Any, known: Mapping[str, type]) -> Mapping[str, Any]:
    for name, value in _mapping(raw).items():
        if name not in known:
            raise ValidationError(
                f"{path}: {name!r} is not a field of a rule.", do=f"Known: {', '.join(known)}."
            )
        if type(value) is not known[name]:
            raise ValidationError(
                f"{path}: {name}: {value!r} is not of type {known[name].__name__}."
            )
        if name == "rehearse" and value not in list(Rehearsal):
            raise ValidationError(
                f"{path}: rehearse: {value!r} is nothing that can be rehearsed.",
                do=f"Known: {', '.join(Rehearsal)}.",
            )
        if name == "interrupt_after":
            Trigger.parse(str(value))
    return _mapping(raw)
