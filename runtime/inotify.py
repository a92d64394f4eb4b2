"""What changes in a directory tree, from the kernel (inotify through ctypes) instead of by looking again and again."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import TracebackType
from typing import Any, Self

# linux/inotify.h
IN_CLOSE_WRITE = 0x8
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x1000000
IN_DONT_FOLLOW = 0x2000000
IN_EXCL_UNLINK = 0x4000000
IN_ISDIR = 0x40000000

_MASK = IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE
_FLAGS = IN_ONLYDIR | IN_DONT_FOLLOW | IN_EXCL_UNLINK
_HEAD = struct.Struct("iIII")
_BUFFER = 1 << 18


class Change(Enum):
    CLOSED = "a file was closed after writing, or moved here"
    APPEARED = "a file was found or linked: whether somebody still writes to it is not known"
    GONE = "a name is gone: a file, or a directory with all below it"
    LOST = "the kernel dropped events: anything may have changed"


@dataclass(frozen=True, slots=True)
class Happened:
    """``name`` is relative to the tree, ``/`` between its parts; empty for :attr:`Change.LOST`."""

    name: str
    change: Change


class TooManyWatches(OSError):
    """The user's limit of watches or instances (fs.inotify.*) is used up, or this system has no inotify."""


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


class TreeWatch:
    """Watches a directory and everything below it, directories that appear later included.

    ``skip`` says of a directory's relative name that nothing below it matters. To be used by one thread, except for
    :meth:`wake`. Symbolic links are names like others and are not followed.

    Raises:
        TooManyWatches: from the constructor and from :meth:`wait`; then only looking again helps.
    """

    def __init__(self, root: str, skip: Callable[[str], bool]) -> None:
        self._root = root
        self._skip = skip
        self._names: dict[int, str] = {}
        self._watches: dict[str, int] = {}
        try:
            self._file = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except AttributeError as error:
            raise TooManyWatches(errno.ENOSYS, "no inotify") from error
        if self._file < 0:
            raise TooManyWatches(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            # What is there before the first watch is the caller's to look at.
            for _ in self._add(""):
                pass
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._file)
        os.close(self._wake)

    def wake(self) -> None:
        """Make :meth:`wait` return; from any thread."""
        os.eventfd_write(self._wake, 1)

    def wait(self, timeout: float | None) -> list[Happened]:
        """What happened since the last call, after waiting up to ``timeout`` seconds (None: for ever) for something."""
        poller = select.poll()
        poller.register(self._file, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        poller.poll(None if timeout is None else max(0.0, timeout) * 1000)
        try:
            data = os.read(self._file, _BUFFER)
        except BlockingIOError:
            return []
        happened: list[Happened] = []
        for watch, mask, raw in _events(data):
            happened += self._event(watch, mask, os.fsdecode(raw))
        return happened

    def _event(self, watch: int, mask: int, leaf: str) -> Iterator[Happened]:
        if mask & IN_Q_OVERFLOW:
            yield from self._add("")  # directories may have appeared unseen
            yield Happened("", Change.LOST)
            return
        if mask & IN_IGNORED:
            name = self._names.pop(watch, None)
            if name is not None and self._watches.get(name) == watch:
                del self._watches[name]
            return
        parent = self._names.get(watch)
        if parent is None or not leaf:
            return
        name = f"{parent}/{leaf}" if parent else leaf
        if mask & (IN_DELETE | IN_MOVED_FROM):
            if mask & IN_ISDIR:
                self._forget(name)
            yield Happened(name, Change.GONE)
        elif mask & IN_ISDIR:
            yield from self._add(name)
        elif mask & (IN_CLOSE_WRITE | IN_MOVED_TO):
            yield Happened(name, Change.CLOSED)
        elif _linked(os.path.join(self._root, name)):  # noqa: PTH118
            yield Happened(name, Change.APPEARED)

    def _add(self, name: str) -> Iterator[Happened]:
        """Watch ``name`` and what is below it; the files found there appeared."""
        pending = [name]
        while pending:
            name = pending.pop()
            if name and self._skip(name):
                continue
            path = os.path.join(self._root, name)  # noqa: PTH118
            if not self._watch(name, path):
                continue
            # Only after the watch is set, so that nothing falls between the two.
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        below = f"{name}/{entry.name}" if name else entry.name
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(below)
                        else:
                            yield Happened(below, Change.APPEARED)
            except OSError:
                continue

    def _watch(self, name: str, path: str) -> bool:
        watch = _libc().inotify_add_watch(self._file, os.fsencode(path), _MASK | _FLAGS)
        if watch < 0:
            code = ctypes.get_errno()
            if code in (errno.ENOSPC, errno.ENOMEM):
                raise TooManyWatches(code, os.strerror(code))
            return False  # gone again, or not ours to look into
        # The kernel gives a directory that is watched already the same number, whatever it is called by now.
        if (old := self._names.get(watch)) is not None and self._watches.get(old) == watch:
            del self._watches[old]
        self._names[watch] = name
        self._watches[name] = watch
        return True

    def _forget(self, name: str) -> None:
        """A directory moved away takes its watches along, under names that no longer hold."""
        below = name + "/"
        for one in [one for one in self._watches if one == name or one.startswith(below)]:
            watch = self._watches.pop(one)
            self._names.pop(watch, None)
            _libc().inotify_rm_watch(self._file, watch)


def _linked(path: str) -> bool:
    """A symbolic or hard link that was made: of these no close will be heard, unlike of a file that was created."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISLNK(status.st_mode) or status.st_nlink > 1


def _events(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(data):
        watch, mask, _, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield watch, mask, data[at : at + length].rstrip(b"\0")
        at += length
