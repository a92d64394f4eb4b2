"""Multipart uploads that have begun, a file each in the job's directory: what goes on with them, or takes them back."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from hotfire.runtime.storage import S3Location, replacing
from hotfire.runtime.synced import Signature


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """An upload that S3 holds parts of. Nothing in it is secret: an UploadId is of no use without credentials."""

    bucket: str
    key: str
    upload_id: str
    source: Signature
    """The file as it was when the upload began."""
    part_bytes: int
    algorithm: str
    """What the parts' checksums are made with; empty where the client makes none."""

    @property
    def to(self) -> S3Location:
        return S3Location(self.bucket, self.key)


class Uploads:
    """The uploads of one owner, which alone goes on with them: below ``directory``, one for each destination.

    A record appears whole, right after S3 has named the upload. Killed in between, the command leaves an upload without
    parts, which S3 does not charge for. A record that cannot be read counts as none.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, to: S3Location) -> Begun | None:
        return _read(self._path(to))

    def keep(self, begun: Begun) -> bool:
        """Record an upload. False on a full or read-only disk, which need not keep the upload itself from its end."""
        try:
            with replacing(self._path(begun.to)) as path:
                path.write_text(json.dumps(asdict(begun)), encoding="utf-8")
        except OSError:
            return False
        return True

    def forget(self, to: S3Location) -> None:
        # What stays on a disk that has become read-only names an upload that S3 no longer knows.
        with contextlib.suppress(OSError):
            self._path(to).unlink()

    def all(self) -> list[Begun]:
        found = (_read(path) for path in sorted(self._directory.glob("*.json")))
        return [one for one in found if one is not None]

    def _path(self, to: S3Location) -> Path:
        name = hashlib.sha256(to.uri.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return self._directory / f"{name}.json"


def _read(path: Path) -> Begun | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Begun(**{**found, "source": Signature(*found["source"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
