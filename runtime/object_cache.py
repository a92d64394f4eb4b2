"""Downloaded objects, kept between jobs: content-addressed, listed, limited in size. Deleting any of it is safe."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hotfire.runtime.s3 import S3Object

_NAMES = "names"


@dataclass(frozen=True, kw_only=True)
class Cached:
    """One object in the cache. ``used``: seconds since the epoch; ``linked``: a job has it in a channel."""

    uri: str
    bytes: int
    used: float
    linked: bool
    path: Path


@dataclass(frozen=True)
class ObjectCache:
    """One file per object under ``root/objects``; its name says bucket, key, ETag and size.

    Whoever changes an object in S3 changes its ETag, and with it the name. The file ``names`` says what each is called.
    """

    root: Path

    def path(self, one: S3Object) -> Path:
        text = "\0".join((one.bucket, one.key, one.etag, str(one.size)))
        digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
        return self.root / "objects" / digest[:2] / digest[2:]

    def has(self, one: S3Object) -> bool:
        try:
            return self.path(one).stat().st_size == one.size
        except FileNotFoundError:
            return False

    def label(self, objects: Iterable[S3Object]) -> None:
        """Write down what objects are called, for :meth:`entries`."""
        lines = "".join(f"{json.dumps([_digest(self.path(one)), one.uri])}\n" for one in objects)
        with (self.root / "objects" / _NAMES).open("a", encoding="utf-8") as out:
            out.write(lines)

    def touch(self, one: S3Object) -> None:
        """The object is in use now: it goes last when room is made."""
        with contextlib.suppress(OSError):
            os.utime(self.path(one))

    def entries(self) -> Iterator[Cached]:
        """Everything that is whole, in no order."""
        names = self._names()
        for path in (self.root / "objects").glob("??/*"):
            if len(path.name) != 62:  # still on its way
                continue
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                yield Cached(
                    uri=names.get(_digest(path), "?"),
                    bytes=found.st_size,
                    used=found.st_mtime,
                    linked=found.st_nlink > 1,
                    path=path,
                )

    def _names(self) -> dict[str, str]:
        found: dict[str, str] = {}
        with (
            contextlib.suppress(FileNotFoundError),
            (self.root / "objects" / _NAMES).open(encoding="utf-8", errors="replace") as lines,
        ):
            for line in lines:
                # Two jobs may have written at once, or one may have died while it wrote.
                with contextlib.suppress(ValueError):
                    digest, uri = json.loads(line)
                    found[digest] = uri
        return found

    def shrink(self, limit: int) -> int:
        """Remove the objects used longest ago until at most ``limit`` bytes are left; returns the bytes removed.

        What a job's channel links to stays: removing it would free nothing.
        """
        found = list(self.entries())
        over = sum(one.bytes for one in found) - limit
        removed = 0
        for one in sorted(found, key=lambda one: one.used):
            if removed >= over:
                break
            if not one.linked:
                one.path.unlink(missing_ok=True)
                removed += one.bytes
        return removed

    def clear(self) -> tuple[int, int]:
        """Remove everything, half downloads and augmented manifests too; returns files and bytes removed."""
        files = size = 0
        for folder in ("objects", "manifests"):
            for path in (self.root / folder).rglob("*"):
                with contextlib.suppress(OSError):
                    if path.is_dir():
                        continue
                    size += path.stat().st_size
                    files += path.name != _NAMES
                    path.unlink()
        return files, size


def _digest(path: Path) -> str:
    return path.parent.name + path.name
