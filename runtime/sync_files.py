"""The local side of a directory that is kept in step: its files, and the markers beside them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hotfire.runtime.synced import UPLOADED, UPLOADING, Signature, look, resolved, scan

# Gone; below what is now a file; a link that leaves the directory; a socket.
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)


class SyncedFiles:
    """Files below ``directory`` by their names relative to it; ``markers``: whether any are written."""

    def __init__(self, directory: Path, *, markers: bool) -> None:
        self._directory = directory
        self.markers = markers

    def look(self, name: str) -> Signature | None:
        return look(self._path(name), self._directory)

    def scan(self) -> Iterator[tuple[str, Signature]]:
        return scan(self._directory)

    def open(self, name: str) -> BinaryIO | None:
        """The file, if it is one that counts. Raises OSError if it cannot be read."""
        # A FIFO in its place must not block us, a link must not lead us away.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        path = self._path(name)
        try:
            try:
                descriptor = os.open(path, flags)
            except OSError as error:
                inside = resolved(path, self._directory)
                if error.errno != errno.ELOOP or inside is None:
                    raise
                descriptor = os.open(inside, flags)
        except OSError as error:
            if error.errno in _NO_FILE:
                return None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return os.fdopen(descriptor, "rb")

    def mark(self, name: str, old: str, new: str) -> None:
        """Turn one marker into the other in one step; best effort: a full disk must not stop an upload."""
        if not self.markers:
            return
        path = self._path(name)
        try:
            os.rename(path + old, path + new)  # noqa: PTH104
        except OSError:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            with contextlib.suppress(OSError):
                os.close(os.open(path + new, flags, 0o666))

    def unmark(self, name: str) -> None:
        for marker in (UPLOADING, UPLOADED) if self.markers else ():
            with contextlib.suppress(OSError):
                os.unlink(self._path(name) + marker)  # noqa: PTH108

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
