"""A gzip tar archive of merged trees, as fast as ISA-L compresses; everything about the bytes of model.tar.gz."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from hotfire.runtime.events import Observer, Progress
from hotfire.runtime.trees import Member, Merged, printable

_LEVEL = 2
"""ISA-L's level: as small as zlib's 9 on weights, 1.2 times its size on source text; 3 (1.16) costs twice the time."""

_STEP = 1 << 20
_REPORT = 8 << 20


class Meter:
    """Counts bytes read and reports every few megabytes and at the end."""

    def __init__(self, observer: Observer, activity: str, total: int) -> None:
        self._observer, self._activity, self._total = observer, activity, total
        self._done = self._said = 0

    def moved(self, count: int) -> None:
        self._done += count
        if self._done - self._said >= _REPORT:
            self.report()

    def report(self) -> None:
        self._said = self._done
        self._observer(Progress(activity=self._activity, done=self._done, total=self._total))


class _Sink:
    """The archive's file as isal's thread sees it: it never raises there, where not every release would wake us."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        if self.error is None:
            try:
                rest = memoryview(data)
                while rest:  # a write without a buffer may take only a part
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        """Nothing is buffered here."""

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def write_archive(merged: Merged, path: Path, meter: Meter) -> list[str]:
    from isal import igzip_threaded

    gzip_open: Callable[..., BinaryIO] = igzip_threaded.open  # it has no annotations
    warnings: list[str] = []
    with path.open("wb", buffering=0) as file:
        sink = _Sink(file)
        with gzip_open(sink, "wb", compresslevel=_LEVEL, threads=_threads()) as gzip:
            tar = _Tar(gzip, sink, meter, warnings)
            for member in merged.members:
                tar.add(member)
            tar.end()
        sink.check()
    meter.report()
    return warnings


def _threads() -> int:
    return max(1, min(8, len(os.sched_getaffinity(0))))


class _Tar:
    """Writes members; tarfile makes the headers, the contents go in large steps and may change under us."""

    def __init__(self, out: BinaryIO, sink: _Sink, meter: Meter, warnings: list[str]) -> None:
        self._out, self._sink, self._meter, self._warnings = out, sink, meter, warnings
        self._names: dict[tuple[int, int], str] = {}
        self._written = 0
        self._buffer = memoryview(bytearray(_STEP))

    def add(self, member: Member) -> None:
        info = header(member)
        inode = (member.status.st_dev, member.status.st_ino)
        if member.is_file and inode in self._names:
            info.type, info.linkname, info.size = tarfile.LNKTYPE, self._names[inode], 0
            self._put(encoded(info))
            self._meter.moved(member.size)
        elif member.is_file:
            self._file(member, info)
            if member.status.st_nlink > 1:
                self._names[inode] = member.name
        else:
            self._put(encoded(info))

    def end(self) -> None:
        """Two empty blocks, filled up to tarfile's and GNU tar's record size."""
        self._put(bytes(2 * tarfile.BLOCKSIZE))
        self._put(bytes(-self._written % tarfile.RECORDSIZE))

    def _file(self, member: Member, info: tarfile.TarInfo) -> None:
        try:
            file = io.FileIO(member.path, opener=_open_file)
        except OSError as error:
            self._say(member, f"{error.strerror}; left out")
            return
        with file:
            before = os.fstat(file.fileno())
            info.size = before.st_size
            self._put(encoded(info))
            self._contents(file, info.size)
            after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            self._say(member, "changed while it was packed")

    def _contents(self, file: io.FileIO, size: int) -> None:
        """Exactly the ``size`` bytes that the header promised: the header is already out."""
        left = size
        while left:
            count = file.readinto(self._buffer[: min(left, _STEP)])
            if not count:
                break
            self._put(self._buffer[:count])
            self._meter.moved(count)
            left -= count
        while left:
            count = min(left, _STEP)
            self._put(bytes(count))
            left -= count
        self._put(bytes(-size % tarfile.BLOCKSIZE))

    def _put(self, data: bytes | memoryview) -> None:
        self._out.write(data)
        self._written += len(data)
        self._sink.check()

    def _say(self, member: Member, text: str) -> None:
        self._warnings.append(f"{printable(member.name)} on {member.host}: {text}")


def _open_file(path: str, flags: int) -> int:
    # Whatever was put in the file's place meanwhile is neither followed nor waited for.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def header(member: Member) -> tarfile.TarInfo:
    info = tarfile.TarInfo(member.name)
    info.mode = member.status.st_mode & 0o7777
    info.mtime = int(member.status.st_mtime)
    info.size = member.size
    if member.is_dir:
        info.type = tarfile.DIRTYPE
    elif member.link:
        info.type, info.linkname = tarfile.SYMTYPE, member.link
    return info


def encoded(info: tarfile.TarInfo) -> bytes:
    """PAX, except for names that are not UTF-8: GNU's own records carry their bytes, and every reader takes both."""
    try:
        f"{info.name}{info.linkname}".encode()
    except UnicodeEncodeError:
        return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
