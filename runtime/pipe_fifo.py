"""One FIFO and one writer: opened, filled and abandoned without ever blocking for good."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterable
from pathlib import Path

PIPE_BYTES = 1 << 20
"""Asked of the kernel for each pipe; what it refuses (pipe-user-pages-soft) stays at its default."""

_STEP = 1 << 20
_DRAIN = 1 << 16
_BATCH = 1 << 18
_NO_SPLICE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


class ReaderGone(Exception):
    """The reader closed its end: the epoch is over, and that is no error (contract 3.7)."""


class Abandoned(Exception):
    """The job is over; nobody will read."""


class Fifo:
    """``path`` as a FIFO that one thread writes to. Another thread may :meth:`release` that thread at any moment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        path.chmod(
            0o666
        )  # a container's user may be another, and some readers open for writing too
        # A reference that survives whatever the script does with the name.
        self._anchor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._out = -1
        self._batch = bytearray()
        self._released = threading.Event()

    def open(self) -> None:
        """Wait for a reader.

        Raises:
            Abandoned: released meanwhile.
        """
        self._look()
        # Blocks until there is a reader; release() plays one to get us out.
        self._out = os.open(self._again, os.O_WRONLY | os.O_CLOEXEC)
        self._look()
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def _again(self) -> str:
        return f"/proc/self/fd/{self._anchor}"

    def _look(self) -> None:
        if self._released.is_set():
            raise Abandoned

    def add(self, *pieces: bytes) -> None:
        """A few bytes, which may wait for others: each call to the kernel wakes the reader, and costs more than they.

        Raises:
            ReaderGone, Abandoned: see there.
        """
        for piece in pieces:
            self._batch += piece
        if len(self._batch) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """What :meth:`add` kept; likewise."""
        if self._batch:
            batch, self._batch = self._batch, bytearray()
            self._write((batch,))

    def write(self, pieces: Iterable[bytes]) -> None:
        """Bytes, as fast as they are read; likewise."""
        self.flush()
        self._write(pieces)

    def _write(self, pieces: Iterable[bytes | bytearray]) -> None:
        for piece in pieces:
            view = memoryview(piece)
            while view:
                self._look()
                try:
                    view = view[os.write(self._out, view[:_STEP]) :]
                except BrokenPipeError:
                    raise ReaderGone from None

    def send(self, file: int, count: int) -> int:
        """Up to ``count`` bytes of a file, not copied through this process where the kernel can; returns how many.

        Raises:
            ReaderGone, Abandoned: see there.
            OSError: the file cannot be read.
        """
        self.flush()
        sent = 0
        while sent < count:
            self._look()
            try:
                moved = os.splice(file, self._out, min(_STEP, count - sent))
            except BrokenPipeError:
                raise ReaderGone from None
            except OSError as error:
                if error.errno not in _NO_SPLICE:
                    raise
                return sent + self._copy(file, count - sent)
            if not moved:
                break
            sent += moved
        return sent

    def _copy(self, file: int, count: int) -> int:
        sent = 0
        while sent < count and (data := os.read(file, min(_STEP, count - sent))):
            self.write((data,))
            sent += len(data)
        return sent

    def close(self, *, unlink: bool = True) -> None:
        """The reader sees the end of the epoch; nothing may use this object any more.

        The name goes first: whoever opens it from now on finds nothing, and does not wait for a writer that has gone.
        """
        if unlink:
            self.path.unlink(missing_ok=True)
        with self._lock:
            for handle in (self._out, self._anchor):
                if handle >= 0:
                    os.close(handle)
            self._out = self._anchor = -1

    def release(self) -> None:
        """Get the writing thread out of whatever it waits in; call again until it has gone."""
        self._released.set()
        with self._lock, contextlib.suppress(OSError):
            if self._anchor < 0:
                return
            reader = os.open(self._again, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                while os.read(reader, _DRAIN):
                    pass
            finally:
                os.close(reader)
