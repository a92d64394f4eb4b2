"""Unpacks a source archive that anybody may have written."""

from __future__ import annotations

import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from hotfire.runtime.errors import DataError

MEMBER_LIMIT = 1_000_000
_RESERVE = 16 * 2**20
_WHAT_TO_DO = "Pack the source directory again: tar -C src -czf sourcedir.tar.gz ."


def unpack(archive: Path, destination: Path) -> None:
    """Unpack ``archive`` (a tar, compressed as tarfile knows) into the empty directory ``destination``.

    Ownership, set-id bits and times are not taken over. Nothing is written outside ``destination``: symbolic links
    are made last, so that no member can be written through one, and only if they stay inside.

    Raises:
        DataError: not an archive, cut off, larger than the disk, or with a member that is absolute, leaves the
            directory, links out of it or is a device. Names the member.
    """
    try:
        with tarfile.open(archive, "r:*") as tar:
            _unpack(tar, archive.name, destination)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(
            f"The source archive {archive.name} cannot be read: {error}.", do=_WHAT_TO_DO
        ) from error
    except OSError as error:
        # gzip reports corruption so, zlib's own error is no OSError.
        raise DataError(
            f"The source archive {archive.name} cannot be unpacked: {error}."
        ) from error


def _unpack(tar: tarfile.TarFile, name: str, destination: Path) -> None:
    room = shutil.disk_usage(destination).free - _RESERVE
    links: list[tuple[Path, str]] = []
    for count, member in enumerate(tar, start=1):
        room -= member.size
        if room < 0 or count > MEMBER_LIMIT:
            raise DataError(
                f"The source archive {name} unpacks to more than the disk below {destination.parent} holds."
                if room < 0
                else f"The source archive {name} has more than {MEMBER_LIMIT} members."
            )
        target = destination / _inside(member.name, name)
        if member.issym():
            links.append((target, member.linkname))
        else:
            _extract(tar, member, target, destination, name)
    for target, text in links:
        _link(target, text, destination, name)


def _inside(member: str, archive: str) -> PurePosixPath:
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(
            f"The source archive {archive} has a member outside the source directory: {member!r}.",
            do=_WHAT_TO_DO,
        )
    return path


def _extract(
    tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, destination: Path, name: str
) -> None:
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.islnk():
        original = destination / _inside(member.linkname, name)
        if not original.is_file():
            raise DataError(
                f"The source archive {name} has a hard link to nothing: {member.name!r}.",
                do=_WHAT_TO_DO,
            )
        shutil.copy(original, target)
    elif member.isfile() and (source := tar.extractfile(member)) is not None:
        with source, target.open("wb") as file:
            shutil.copyfileobj(source, file, 2**20)
        target.chmod(0o755 if member.mode & 0o100 else 0o644)
    else:
        raise DataError(
            f"The source archive {name} has a member that is no file: {member.name!r}.",
            do=_WHAT_TO_DO,
        )


def _link(target: Path, text: str, destination: Path, name: str) -> None:
    # Links made before may lead the parent elsewhere, but only to places inside: each was checked.
    target.parent.mkdir(parents=True, exist_ok=True)
    root = os.path.realpath(destination)
    leads_to = os.path.realpath(target.parent / text)
    if PurePosixPath(text).is_absolute() or os.path.commonpath([root, leads_to]) != root:
        raise DataError(
            f"The source archive {name} has a link that leaves the source directory: {target.name!r} -> {text!r}.",
            do=_WHAT_TO_DO,
        )
    target.unlink(missing_ok=True)
    target.symlink_to(text)
