"""Checkpoints on their way to the hosts, before these start (contract 5.7)."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from hotfire.runtime import download, keys
from hotfire.runtime.copies import copy_exactly
from hotfire.runtime.destinations import TEMPORARY, folder_key
from hotfire.runtime.errors import DataError, ValidationError
from hotfire.runtime.events import Observer, Progress
from hotfire.runtime.s3 import S3
from hotfire.runtime.storage import LocalLocation, Location, S3Location, local_fault
from hotfire.runtime.synced import UPLOADED, UPLOADING, Signature, look

_MARKERS = (UPLOADING, UPLOADED)


def restore(
    location: Location,
    directories: Sequence[Path],
    observer: Observer,
    *,
    s3: S3 | None = None,
    activity: str = "checkpoints",
) -> list[dict[str, Signature]]:
    """Copy everything below ``location`` into each directory (one per host), the agent's markers aside.

    Nothing there is not an error. An S3 prefix is downloaded once.

    Returns:
        Per directory what was put there: the ``known`` of :class:`~hotfire.runtime.sync.Sync`.

    Raises:
        DataError: it cannot be read, or a disk is full.
    """
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
    if not directories:
        return []
    if isinstance(location, LocalLocation):
        names = _names_below(location.path)
        _copy_all(location.path, directories, names, observer, activity)
    else:
        names = _fetch(location, directories[0], s3 or S3(), observer, activity)
        _copy_all(directories[0], directories[1:], names, observer, activity)
    return [
        {name: found for name in names if (found := look(f"{directory}/{name}", directory))}
        for directory in directories
    ]


def _restored(name: str) -> bool:
    return not name.endswith(_MARKERS) and not name.startswith(TEMPORARY)


def _names_below(root: Path) -> list[str]:
    def refuse(error: OSError) -> None:
        raise local_fault(error, Path(error.filename or root), "Checkpoints must be readable.")

    try:
        if not stat.S_ISDIR(root.stat().st_mode):
            raise DataError(f"{root} is not a directory", do="Checkpoints go to a directory.")
    except FileNotFoundError:
        return []
    except OSError as error:
        refuse(error)
    found: list[str] = []

    for folder, _, files in os.walk(root, onerror=refuse):
        prefix = os.path.relpath(folder, root)
        found += [name if prefix == "." else f"{prefix}/{name}" for name in files]
    return sorted(name for name in found if _restored(name) and (root / name).is_file())


def _copy_all(
    source: Path, targets: Sequence[Path], names: Sequence[str], observer: Observer, activity: str
) -> None:
    done, total = 0, sum((source / name).stat().st_size for name in names) * len(targets)
    for target in targets:
        for name in names:
            path = target / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with (source / name).open("rb") as reader, path.open("wb") as writer:
                    size = os.fstat(reader.fileno()).st_size
                    copy_exactly(reader.fileno(), writer.fileno(), size, lambda: True)
            except OSError as error:
                raise local_fault(error, path, "Free space, and start the job again.") from error
            done += size
            observer(Progress(activity=activity, done=done, total=total))


def _fetch(
    location: S3Location, target: Path, s3: S3, observer: Observer, activity: str
) -> list[str]:
    prefix = folder_key(location)
    try:
        objects = s3.objects(S3Location(location.bucket, prefix))
        tree = keys.key_tree(prefix, [one.key for one in objects])
    except ValidationError as error:
        raise DataError(f"Data download failed: {error.what}", do=error.do) from error
    wanted = {
        str(tree.files[one.key]): download.Wanted(one, target / tree.files[one.key])
        for one in objects
        if one.key in tree.files and _restored(str(tree.files[one.key]))
    }
    if wanted:
        download.download(s3.client, list(wanted.values()), observer, activity)
    return sorted(wanted)
