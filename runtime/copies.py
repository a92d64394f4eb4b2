"""Copies of files: holes stay holes, and blocks are shared where the disk can."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from hotfire.runtime.events import Observer, Progress
from hotfire.runtime.storage import local_fault, no_room, replacing
from hotfire.runtime.synced import Abandoned, Changed

_STEP = 16 << 20


def copy_file(source: Path, target: Path, moved: Callable[[int], object]) -> None:
    """Copy contents up to the end, wherever that is by then; ``moved`` hears of bytes as they go.

    Raises:
        OSError: reading or writing failed.
    """
    with source.open("rb") as reader, target.open("wb") as writer:
        at = 0
        for count in _copied(reader.fileno(), writer.fileno(), os.fstat(reader.fileno()).st_size):
            at += count
            moved(count)
        # What grows; and the files of some virtual file systems, which say that they are empty.
        while data := os.pread(reader.fileno(), 1 << 20, at):
            _write(writer.fileno(), data, at)
            at += len(data)
            moved(len(data))


def copy_exactly(reader: int, writer: int, size: int, moved: Callable[[], bool]) -> None:
    """Copy ``size`` bytes between two open files.

    Raises:
        OSError: reading or writing failed.
        Changed: the source became shorter meanwhile.
        Abandoned: ``moved`` answered no.
    """
    for _ in _copied(reader, writer, size):
        if not moved():
            raise Abandoned
    if os.fstat(reader).st_size < size:
        raise Changed


def put_local(source: Path, target: Path, observer: Observer, activity: str) -> None:
    """Copy the file ``source`` to ``target``, which appears whole or not at all.

    Raises:
        DataError: the directory cannot be written, or the disk is full; ``source`` stays.
    """
    total = source.stat().st_size
    done = 0

    def moved(count: int) -> None:
        nonlocal done
        done += count
        observer(Progress(activity=activity, done=done, total=total))

    try:
        with replacing(target) as temporary:
            copy_file(source, temporary, moved)
    except OSError as error:
        raise local_fault(
            error, target, f"{source} is kept: make room or rights, and copy it there."
        ) from error


def _copied(reader: int, writer: int, size: int) -> Iterator[int]:
    """Copy up to ``size`` bytes; the lengths of the pieces, holes among them. Ends early where the source does."""
    os.ftruncate(writer, size)
    at = 0
    for start, end in _extents(reader, size):
        if start > at:
            yield start - at
        at = start
        while at < end:
            count = _copy_range(reader, writer, at, min(_STEP, end - at))
            if not count:
                os.ftruncate(writer, at)
                return
            at += count
            yield count
    if at < size:
        yield size - at


def _extents(reader: int, size: int) -> Iterator[tuple[int, int]]:
    at = 0
    while at < size:
        try:
            start = os.lseek(reader, at, os.SEEK_DATA)
            end = os.lseek(reader, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                return
            start, end = at, size  # a file system that knows no holes
        yield start, min(end, size)
        at = end


def _copy_range(reader: int, writer: int, at: int, count: int) -> int:
    try:
        # Some virtual file systems answer 0 without being at the end.
        if copied := os.copy_file_range(reader, writer, count, at, at):
            return copied
    except OSError as error:
        if no_room(error):
            raise
    data = os.pread(reader, min(count, 1 << 20), at)  # two file systems, or an odd one
    _write(writer, data, at)
    return len(data)


def _write(writer: int, data: bytes, at: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(writer, data[written:], at + written)
