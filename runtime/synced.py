"""Which files of a directory are synchronised, and what tells one content of a file from another."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

UPLOADING = ".sagemaker-uploading"
UPLOADED = ".sagemaker-uploaded"
IGNORE = ".sagemaker-ignore"


class Abandoned(Exception):
    """A transfer ended because nobody waits for it any more."""


class Changed(Exception):
    """The file changed while it was read: what was read is neither its old content nor its new one."""


class Signature(NamedTuple):
    """What tells one content of a file from another without reading it."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Signature:
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


def skipped(name: str) -> bool:
    """Names that are never synchronised: the agent's markers, and what contains ``.sagemaker-ignore``."""
    return IGNORE in name or name.endswith((UPLOADING, UPLOADED))


def resolved(path: str, root: Path) -> str | None:
    """Where the symbolic link ``path`` ends inside ``root``; None if it leaves it."""
    real, top = os.path.realpath(path), os.path.realpath(root)
    return real if real.startswith(top + "/") else None


def look(path: str, root: Path) -> Signature | None:
    """The signature of a regular file (through links inside ``root``); None for whatever else."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            found = resolved(path, root)
            if found is None:
                return None
            status = os.lstat(found)
    except OSError:
        return None
    return Signature.of(status) if stat.S_ISREG(status.st_mode) else None


def scan(root: Path) -> Iterator[tuple[str, Signature]]:
    """Every file below ``root`` that is synchronised, with its name relative to it."""
    pending = [""]
    while pending:
        prefix = pending.pop()
        try:
            entries = list(os.scandir(f"{root}/{prefix}"))
        except OSError:
            continue
        for entry in entries:
            name = prefix + entry.name
            if skipped(name):
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(name + "/")
            elif found := look(entry.path, root):
                yield name, found
