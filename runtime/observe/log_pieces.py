"""A host's log on disk: closed pieces, compressed, and behind them the file that the host still writes.

A host holds its log open as long as it lives, so the file cannot be renamed under it. What has been read of it is copied
to ``log.BEGIN-END.gz`` and then given back to the disk (a hole in the file): the file keeps its length, an offset means
the same bytes for ever, and the disk holds at most about a piece of it. A piece counts from the moment it bears its
name, and only afterwards its bytes go: cut short anywhere, no line is lost and none is there twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from hotfire.runtime.events import Note, Observer

PIECE_BYTES = 16_000_000
"""Of a log in a piece, unless HOTFIRE_LOG_PIECE says otherwise."""
PLAIN = 4
"""A log of fewer pieces stays one plain file, which anybody can read, and costs nothing."""

_LEVEL = (
    1  # 300 MB/s on one core; the next better level takes three times as long for the same size
)
_GZIP = 31  # zlib's number for the format


@dataclass(frozen=True, slots=True)
class _Piece:
    path: Path
    begin: int
    end: int


def _pieces(log: Path) -> list[_Piece]:
    """The closed pieces, first to last; the directory is their index."""
    name = re.compile(re.escape(log.name) + r"\.(\d+)-(\d+)\.gz")
    try:
        found = [match for entry in os.listdir(log.parent) if (match := name.fullmatch(entry))]  # noqa: PTH208
    except FileNotFoundError:
        return []
    pieces = [_Piece(log.with_name(one[0]), int(one[1]), int(one[2])) for one in found]
    return sorted(pieces, key=lambda piece: piece.begin)


def extent(log: Path) -> tuple[int, int]:
    """How many bytes the log has, and when the last of them was written at the latest (nanoseconds since the epoch).

    Raises FileNotFoundError where there is none.
    """
    try:
        found = log.stat()
    except FileNotFoundError:
        if not (pieces := _pieces(log)):
            raise
        return pieces[-1].end, pieces[-1].path.stat().st_mtime_ns
    return found.st_size, found.st_mtime_ns


def read(log: Path, begin: int, end: int) -> bytes:
    """What of the bytes ``[begin, end)`` is there."""
    parts = []
    while begin < end and (data := _read_some(log, begin, end)):
        parts.append(data)
        begin += len(data)
    return b"".join(parts)


def tail(log: Path, count: int) -> bytes:
    """The last ``count`` bytes; nothing where there is no log."""
    try:
        end, _ = extent(log)
    except FileNotFoundError:
        return b""
    return read(log, max(0, end - count), end)


def _read_some(log: Path, begin: int, end: int) -> bytes:
    data = None
    with contextlib.suppress(FileNotFoundError):
        data = _of_file(log, begin, end)
        if not data:
            return b""
    # Looked for after the file was read: what is in no piece now was still in the file then.
    for piece in _pieces(log):
        if piece.begin <= begin < piece.end:
            text = _unpacked(piece.path, piece.path.stat().st_mtime_ns)
            return text[begin - piece.begin : end - piece.begin]
    return data or b""


def _of_file(log: Path, begin: int, end: int) -> bytes:
    descriptor = os.open(log, os.O_RDONLY)
    try:
        return os.pread(descriptor, end - begin, begin)
    finally:
        os.close(descriptor)


@functools.lru_cache(maxsize=4)
def _unpacked(path: Path, changed: int) -> bytes:
    """``changed`` tells the piece from one of a later job of the same name."""
    from isal import isal_zlib

    return isal_zlib.decompress(path.read_bytes(), wbits=_GZIP)


class Rotation:
    """Closes pieces of the log of one host, behind its only reader, who has to say how far it has come."""

    def __init__(self, log: Path, scratch: Path, observer: Observer, size: int) -> None:
        """``scratch``: a directory of the same file system, where the piece grows that is being made."""
        self._log = log
        self._part = scratch / "log-piece"
        self._observer = observer
        self._size = size
        self._end = 0
        self._next: float = PLAIN * size

    def read_to(self, offset: int) -> None:
        """What is before ``offset`` has been read: close what makes a piece."""
        if offset < self._next:
            return
        try:
            while offset - self._end >= self._size:
                self._close(self._end + self._size)
        except OSError as error:
            self._put_off(error, offset)
        else:
            self._next = self._end + self._size

    def finish(self, offset: int) -> None:
        """The host has ended and its log is read to the end: a log in pieces is nothing else any more."""
        if not self._end:
            return
        with contextlib.suppress(OSError):  # then it stays as it is, which can be read as well
            while self._end < offset:
                self._close(min(offset, self._end + self._size), whole_lines=False)
            with self._log.open("rb") as log:
                # Granted only if nobody has it open for writing: a process that outlived its host, an engine.
                fcntl.fcntl(log, fcntl.F_SETLEASE, fcntl.F_RDLCK)
                fcntl.fcntl(log, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                if os.fstat(log.fileno()).st_size == self._end:
                    self._log.unlink()

    def _put_off(self, error: OSError, offset: int) -> None:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
            self._next = float("inf")
            text = f"the file system of {self._log} frees no part of a file: long logs stay in one piece"
            self._observer(Note(text=text))
        else:  # such as a full disk, which others will tell of
            self._next = offset + self._size

    def _close(self, stop: int, *, whole_lines: bool = True) -> None:
        from isal import isal_zlib

        from hotfire.runtime.backends.syscalls import punch

        begin = self._end
        data = _of_file(self._log, begin, stop)
        if begin + len(data) < stop:
            raise OSError(errno.EIO, "what was read of the log has gone", str(self._log))
        if whole_lines:
            data = data[: data.rfind(b"\n") + 1] or data
        end = begin + len(data)
        try:
            with self._part.open("wb") as out:
                out.write(isal_zlib.compress(data, _LEVEL, wbits=_GZIP))
                punch(out.fileno(), out.tell(), 1)  # refused here before anything depends on it
                out.flush()
                os.fsync(out.fileno())
            self._part.rename(self._log.with_name(f"{self._log.name}.{begin:015}-{end:015}.gz"))
        finally:
            self._part.unlink(missing_ok=True)
        self._end = end
        with self._log.open("r+b") as log:
            # From the start: a block that two pieces share goes with the second.
            punch(log.fileno(), 0, end)
