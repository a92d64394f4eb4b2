"""FastFile mode: the tree is there at once, read-only, and bytes come when they are read (contract 3.6).

Local data is bound read-only where it lies. Data in S3 is a FUSE mount where the package mfusepy, libfuse and /dev/fuse
are there; elsewhere it is downloaded like a File channel, and a note says so.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotfire.runtime.channel_parts import Feeds
from hotfire.runtime.channel_tree import TreeInput
from hotfire.runtime.errors import PlatformError, ValidationError
from hotfire.runtime.events import Note, Observer
from hotfire.runtime.listing import Object
from hotfire.runtime.s3 import S3Object
from hotfire.runtime.storage import human

DEVICE = Path("/dev/fuse")
CONFIGURATION = Path("/etc/fuse.conf")
_PATIENCE = 15.0


def partial(name: str, uri: str) -> ValidationError:
    """The refusal of a prefix that ends inside a name; the service fails the job for it."""
    return ValidationError(
        f"channel {name}: FastFile does not support partial prefixes, and {uri} ends inside a name",
        do="Name a whole folder, with or without its '/', or use File or Pipe mode.",
    )


def missing(*, containers: bool = False) -> str:
    """Why this machine cannot mount by FUSE (so that containers can read it); nothing when it can."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{DEVICE} does not open ({error.strerror})"
    if importlib.util.find_spec("mfusepy") is None:
        return "the package mfusepy is not installed"
    if not (os.environ.get("FUSE_LIBRARY_PATH") or any(map(_library, ("fuse3", "fuse")))):
        return "libfuse is not installed"
    if os.geteuid() and not (shutil.which("fusermount3") or shutil.which("fusermount")):
        return "there is no fusermount3"
    if containers and not others_may_read():
        return f"containers run as other users, and {CONFIGURATION} has no line user_allow_other"
    return ""


def others_may_read() -> bool:
    """Whether a mount of this user's may admit other users: fusermount3 asks the machine's owner."""
    if not os.geteuid():
        return True
    with suppress(OSError):
        return "user_allow_other" in CONFIGURATION.read_text().split("\n")
    return False


def _library(name: str) -> str | None:
    return ctypes.util.find_library(name)


def choose(tree: TreeInput, *, containers: bool = False) -> TreeInput:
    """How this machine carries out a FastFile channel whose files must be put together."""
    if not all(isinstance(one, S3Object) for one in tree.listing.objects):
        return tree
    if not (why := missing(containers=containers)):
        return MountedInput(**{name: getattr(tree, name) for name in tree.__dataclass_fields__})
    text = (
        f"channel {tree.name}: FastFile is carried out as a download into the cache before the start, because {why}; "
        "the files are read-only as on the service"
    )
    return replace(tree, notes=(*tree.notes, text))


@dataclass(frozen=True, kw_only=True)
class MountedInput(TreeInput):
    """Objects of S3 as a FUSE mount per tree; a process of its own serves it, since the kernel waits for the answers."""

    def to_download(self) -> int:
        return 0

    @contextmanager
    def materialise(self, observer: Observer, feeds: Feeds) -> Iterator[None]:
        servers: list[tuple[Path, subprocess.Popen[bytes]]] = []
        try:
            for host in sorted(self.hosts) if self.differ else sorted(self.hosts)[:1]:
                root = self.root(host)
                servers.append((root, _serve(root, self._tree(self.share(host)))))
            size = self.size()
            text = f"channel {self.name}: {size.files} objects, {human(size.bytes)}, read when they are needed (FUSE)"
            observer(Note(text=text))
            yield
        finally:
            for root, server in servers:
                _end(root, server)

    def _tree(self, share: Sequence[Object]) -> dict[str, Any]:
        files = {
            str(self.tree.files[one.key]): [one.bucket, one.key, one.size, one.etag]
            for one in share
            if isinstance(one, S3Object)
        }
        return {"files": files, "directories": [str(path) for path in self.tree.directories]}


def _serve(root: Path, tree: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Mount at ``root``, which exists and answers when this returns."""
    root.mkdir(parents=True, exist_ok=True)
    server = subprocess.Popen(
        [sys.executable, "-m", "hotfire.runtime.fastfile_server", root],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert server.stdin is not None
    with suppress(BrokenPipeError):
        server.stdin.write(json.dumps(tree).encode())
    with suppress(BrokenPipeError):
        server.stdin.close()
    server.stdin = None
    end = time.monotonic() + _PATIENCE
    while not root.is_mount():
        if server.poll() is not None or time.monotonic() > end:
            tail = _end(root, server).strip().splitlines()[-1:]
            raise PlatformError(
                f"cannot mount {root} by FUSE: {' '.join(tail) or 'it took too long'}",
                do="Uninstall mfusepy to have FastFile carried out as a download.",
            )
        time.sleep(0.005)
    return server


def _end(root: Path, server: subprocess.Popen[bytes]) -> str:
    """Unmount; the server then ends by itself, unless somebody keeps a file open. Returns what it said."""
    _unmount(root)
    try:
        _, said = server.communicate(timeout=1)
    except subprocess.TimeoutExpired:
        server.kill()
        _, said = server.communicate()
    return said.decode(errors="replace")


def _unmount(root: Path) -> None:
    from hotfire.runtime.backends import syscalls

    with suppress(OSError):
        if not os.geteuid():
            syscalls.detach(os.fsencode(root))
            return
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    if program is not None:
        subprocess.run([program, "-uz", root], check=False, capture_output=True)
