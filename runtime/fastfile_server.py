"""Serves objects of S3 as a read-only file system at a mount point, until it is unmounted. A process of its own.

The tree comes as JSON on stdin; credentials and endpoint come from the environment, as for every other use of S3.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import stat
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import PurePosixPath
from typing import Any

from hotfire.runtime.backends import syscalls
from hotfire.runtime.daemon_pool import DaemonPool
from hotfire.runtime.errors import HotfireError
from hotfire.runtime.fastfile import others_may_read
from hotfire.runtime.s3 import S3, S3Object
from hotfire.runtime.s3_stream import Blocks

BLOCK = 4 << 20
"""Bytes fetched at once; the one that follows is begun when one is read."""
HELD = 16
"""Blocks held in memory."""


class Tree:
    """Directories and files by path, ``/`` for the top."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.files = {
            "/" + path: S3Object(bucket=bucket, key=key, size=size, etag=etag)
            for path, (bucket, key, size, etag) in raw["files"].items()
        }
        self.directories: dict[str, set[str]] = {"/": set()}
        for path in [*self.files, *("/" + one for one in raw["directories"])]:
            self._add(PurePosixPath(path))
        for one in raw["directories"]:
            self.directories.setdefault("/" + one, set())

    def _add(self, path: PurePosixPath) -> None:
        while path != path.parent:
            self.directories.setdefault(str(path.parent), set()).add(path.name)
            path = path.parent


class Reader:
    """Ranges of objects by blocks, the last ones kept; safe to share between threads."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._pool = DaemonPool(8, "block")
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, int], Future[bytes]] = OrderedDict()

    def read(self, one: S3Object, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; raises DataError."""
        end = min(offset + size, one.size)
        found = bytearray()
        while (at := offset + len(found)) < end:
            number = at // BLOCK
            block = self._block(one, number)
            if (number + 1) * BLOCK < one.size:
                self._block(one, number + 1)
            start = at - number * BLOCK
            found += block.result()[start : start + end - at]
        return bytes(found)

    def _block(self, one: S3Object, number: int) -> Future[bytes]:
        key = (one.uri, number)
        with self._lock:
            if (block := self._held.get(key)) is None or (block.done() and block.exception()):
                start = number * BLOCK
                count = min(BLOCK, one.size - start)
                block = self._held[key] = self._pool.submit(self._blocks.get, one, start, count)
            self._held.move_to_end(key)
            while len(self._held) > HELD:
                self._held.popitem(last=False)
        return block


def operations(tree: Tree, reader: Reader) -> Any:
    """What mfusepy asks for. Its base class is imported here: only this process has it."""
    mfusepy: Any = importlib.import_module("mfusepy")
    now = time.time()
    common = {
        "st_uid": os.getuid(),
        "st_gid": os.getgid(),
        "st_atime": now,
        "st_mtime": now,
        "st_ctime": now,
    }

    class ReadOnly(mfusepy.Operations):  # type: ignore[misc]
        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            if path in tree.directories:
                return common | {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2}
            one = _file(tree, path)
            return common | {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": one.size}

        def readdir(self, path: str, fh: int) -> list[str]:
            if path not in tree.directories:
                raise mfusepy.FuseOSError(errno.ENOTDIR)
            return [".", "..", *sorted(tree.directories[path])]

        def open(self, path: str, flags: int) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR):
                raise mfusepy.FuseOSError(errno.EROFS)
            _file(tree, path)
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            try:
                return reader.read(_file(tree, path), offset, size)
            except HotfireError as error:
                print(error.what, file=sys.stderr, flush=True)
                raise mfusepy.FuseOSError(errno.EIO) from error

    return ReadOnly()


def _file(tree: Tree, path: str) -> S3Object:
    if (one := tree.files.get(path)) is None:
        raise FileNotFoundError(errno.ENOENT, path)
    return one


def main(mount_point: str) -> None:
    # libfuse unmounts on SIGTERM: nothing stays behind where the supervisor is killed.
    syscalls.die_with_parent(signal.SIGTERM)
    mfusepy: Any = importlib.import_module("mfusepy")
    tree = Tree(json.load(sys.stdin))
    served = operations(tree, Reader(Blocks(S3(), threading.Event())))
    others = {"allow_other": True} if others_may_read() else {}
    mfusepy.FUSE(served, mount_point, foreground=True, ro=True, fsname="hotfire", **others)


if __name__ == "__main__":
    main(sys.argv[1])
