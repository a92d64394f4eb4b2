"""ManifestFile and AugmentedManifestFile: which objects and values a manifest names (contract 3.3, 3.9)."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotfire.runtime.errors import DataError, ValidationError

_SUFFIX = "-ref"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """``uris`` in the order of the array, each the prefix with one entry appended, letter by letter."""

    prefix: str
    uris: tuple[str, ...]


def parse(text: str, uri: str) -> Manifest:
    """A ManifestFile: ``[{"prefix": "s3://bucket/some/"}, "a.csv", "b.csv"]``.

    Raises:
        ValidationError: anything else, or a manifest without an entry.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise _bad(uri, f"is no JSON: {error}") from error
    if not isinstance(content, list) or not content or not isinstance(content[0], dict):
        raise _bad(uri, "is no array that begins with an object")
    prefix = content[0].get("prefix")
    if not isinstance(prefix, str) or not prefix:
        raise _bad(uri, "has no prefix in its first element")
    if set(content[0]) != {"prefix"}:
        raise _bad(uri, "has more than the prefix in its first element")
    for number, entry in enumerate(content[1:], start=1):
        if not isinstance(entry, str) or not entry:
            raise _bad(uri, f"has an element that is no text at position {number}")
    if len(content) == 1:
        raise _bad(uri, "names no object")
    return Manifest(prefix=prefix, uris=tuple(prefix + entry for entry in content[1:]))


def _bad(uri: str, why: str) -> ValidationError:
    return ValidationError(
        f"manifest {uri} {why}", do='Write [{"prefix": "s3://bucket/some/"}, "key", ...].'
    )


@dataclass(frozen=True)
class Reference:
    """The value of an attribute whose name ends in ``-ref``: the object's bytes enter the stream."""

    uri: str


@dataclass(frozen=True, kw_only=True)
class Attributes:
    """What is taken from every line, and how."""

    names: tuple[str, ...]
    bare: bool = False
    """Texts without their JSON quotes."""


@dataclass(frozen=True, kw_only=True)
class AugmentedManifest:
    """An AugmentedManifestFile on this machine: only the positions of its lines are kept in memory."""

    path: Path
    uri: str
    attributes: Attributes
    starts: Sequence[int] = field(repr=False)
    """Bytes before each line that counts."""

    def __len__(self) -> int:
        return len(self.starts)

    def values(self, position: int) -> tuple[Reference | bytes, ...]:
        """The attributes of one line in their order (contract 3.9)."""
        with self.path.open("rb") as source:
            source.seek(self.starts[position])
            line = json.loads(source.readline())
        try:
            return tuple(self._value(name, line[name]) for name in self.attributes.names)
        except KeyError as error:
            text = json.dumps(line, ensure_ascii=False)
            raise DataError(
                f"Data download failed: {self.uri} has no attribute {error} in the line {text[:200]}",
                do="Complete the line.",
            ) from None

    def _value(self, name: str, value: Any) -> Reference | bytes:
        if name.endswith(_SUFFIX):
            return Reference(value)
        if self.attributes.bare and isinstance(value, str):
            return value.encode()
        return json.dumps(value, ensure_ascii=False).encode()

    def check(self) -> None:
        """Raise DataError if the file went away."""
        if not os.access(self.path, os.R_OK):
            raise DataError(
                f"Data download failed: {self.path} has gone since the job was created",
                do="Put it back and start the job again.",
            )


def index(
    path: Path, uri: str, attributes: Attributes, *, missing: str = "refuse"
) -> AugmentedManifest:
    """Read an augmented manifest through once.

    ``missing`` is about the lines that lack an attribute: ``refuse`` the manifest, ``skip`` them, or let them ``fail``
    when their turn comes (:meth:`AugmentedManifest.values`).

    Raises:
        ValidationError: a line is no JSON object, lacks an attribute, or a ``-ref`` is no URI; with its number.
    """
    starts = array("Q")
    for number, (start, line) in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        if _complete(line, f"{uri} line {number}", attributes.names, missing):
            starts.append(start)
    if not starts:
        raise ValidationError(
            f"augmented manifest {uri} has no line to read", do="Write one JSON object a line."
        )
    return AugmentedManifest(path=path, uri=uri, attributes=attributes, starts=starts)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    start = 0
    with path.open("rb") as source:
        for line in source:
            yield start, line
            start += len(line)


def _complete(line: bytes, where: str, names: Sequence[str], missing: str) -> bool:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValidationError(
            f"augmented manifest {where} is no JSON: {error}", do="Write one JSON object a line."
        ) from error
    if not isinstance(value, dict):
        raise ValidationError(
            f"augmented manifest {where} is no JSON object", do="Write one JSON object a line."
        )
    if absent := [name for name in names if name not in value]:
        if missing != "refuse":
            return missing == "fail"
        raise ValidationError(
            f"augmented manifest {where} has no attribute {absent[0]!r}",
            do=f"It has: {', '.join(value)}. --data-rule attribute-missing=skip leaves such lines out.",
        )
    for name in names:
        if name.endswith(_SUFFIX) and not isinstance(value[name], str):
            raise ValidationError(
                f"augmented manifest {where}: {name} is no URI",
                do="An attribute that ends in -ref names an object: s3://bucket/key.",
            )
    return True
