"""Copies for where the kernel grants no overlay, as cheap as the file system makes them; and removal of anything."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from pathlib import Path

from hotfire.runtime.errors import DataError

_FICLONE = 0x4004_9409


def tree_size(source: Path) -> int:
    """Bytes of all regular files in ``source``, a file or a directory; links are not followed."""
    if not source.is_dir():
        return source.stat().st_size
    entries = (
        os.lstat(f"{directory}/{name}") for directory, _, names in os.walk(source) for name in names
    )
    return sum(status.st_size for status in entries if stat.S_ISREG(status.st_mode))


def copy_tree(source: Path, target: Path) -> tuple[int, bool]:
    """Copy a file or a directory to ``target``, which does not exist, or is an empty directory.

    Returns the bytes, and whether the file system shares them (a reflink) instead of holding them twice.

    Raises:
        DataError: there is not enough space, a file cannot be read, or ``target`` lies in ``source``.
    """
    if target.resolve().is_relative_to(source.resolve()):
        raise DataError(
            f"{source} holds hotfire's own jobs ({target}): a copy of it would hold itself.",
            do="Give a directory of its own, or set HOTFIRE_HOME to one outside; or run `hotfire setup`.",
        )
    size = tree_size(source)
    shared = _can_share(source, target.parent)
    free = shutil.disk_usage(target.parent).free
    if not shared and size > free:
        raise DataError(
            f"a copy of {source} takes {size:,} bytes and {target.parent} has {free:,} free.",
            do="Free some space, set HOTFIRE_HOME to a larger disk, or run `hotfire setup`.",
        )
    try:
        if source.is_dir():
            shutil.copytree(
                source, target, symlinks=True, copy_function=_copy_file, dirs_exist_ok=True
            )
        else:
            _copy_file(str(source), str(target))
    except (shutil.Error, OSError) as error:
        raise DataError(
            f"copying {source} failed: {error}", do="See that every file in it can be read."
        ) from error
    for directory, _, _ in os.walk(
        target
    ):  # of a read-only source too: the copy is there to be written
        path = Path(directory)
        path.chmod(path.stat().st_mode | stat.S_IRWXU)
    return size, shared


def _copy_file(source: str, target: str) -> str:
    if not _share(source, target):
        shutil.copyfile(source, target, follow_symlinks=False)
    shutil.copystat(source, target, follow_symlinks=False)
    if not Path(target).is_symlink():
        Path(target).chmod(Path(target).stat().st_mode | stat.S_IWUSR)
    return target


def _share(source: str, target: str) -> bool:
    if Path(source).is_symlink():
        return False
    with Path(source).open("rb") as old, Path(target).open("wb") as new:
        try:
            fcntl.ioctl(new, _FICLONE, old.fileno())
        except OSError:
            return False
    return True


def _can_share(source: Path, directory: Path) -> bool:
    """Whether the file system clones a file of ``source`` into ``directory``; found by doing it."""
    files = (Path(d) / name for d, _, names in os.walk(source) for name in names)
    some = source if source.is_file() else next((f for f in files if not f.is_symlink()), None)
    if some is None:
        return False
    trial = directory / ".hotfire-reflink"
    try:
        return _share(str(some), str(trial))
    except OSError:
        return False
    finally:
        trial.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a directory with everything in it, also where a directory denies its owner; nothing if it is not there."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except PermissionError:
        for directory, names, _ in os.walk(path):
            for name in names:
                inner = Path(directory, name)
                if not inner.is_symlink():
                    inner.chmod(0o700)
        shutil.rmtree(path)
