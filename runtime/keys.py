"""From the keys of an S3 prefix to paths below the channel directory (contract 3.2). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from hotfire.runtime.errors import ValidationError

_LONGEST_NAME = 255


@dataclass(frozen=True)
class KeyTree:
    """``files`` maps key to path below the channel directory; ``directories`` come from folder markers."""

    files: Mapping[str, PurePosixPath]
    directories: frozenset[PurePosixPath]


def stripped(prefix: str, keys: Iterable[str]) -> str:
    """The leading part that every key loses.

    Working rule of contract 3.2: if each match equals the prefix or goes on with ``/``, the prefix and its slash;
    else everything up to the prefix's last ``/``. One object named by its whole key keeps its file name.
    """
    if not prefix or prefix.endswith("/"):
        return prefix
    folder = prefix + "/"
    keys = [key for key in keys if key != prefix]
    if keys and all(key.startswith(folder) for key in keys):
        return folder
    return prefix[: prefix.rfind("/") + 1]


def key_tree(prefix: str, keys: Sequence[str], *, cut: str | None = None) -> KeyTree:
    """Where each key goes; ``keys`` all start with ``prefix``.

    Doubled slashes and ``.`` count as on a file system. ``cut`` is what every key loses where :func:`stripped` is not
    to decide.

    Raises:
        ValidationError: a key would leave the channel directory, cannot be a file name, or clashes with another key.
    """
    cut = stripped(prefix, keys) if cut is None else cut
    files: dict[str, PurePosixPath] = {}
    directories: set[PurePosixPath] = set()
    for key in keys:
        path = _relative(key, cut)
        if key.endswith("/"):
            directories.add(path)
        elif key in files:
            raise _clash(key, key, path)
        else:
            files[key] = path
    _refuse_clashes(files, directories)
    return KeyTree(files, frozenset(directories - {PurePosixPath()}))


def _relative(key: str, cut: str) -> PurePosixPath:
    # An object that is named like the folder itself does not start with the folder's slash.
    # Nor has one that is cut whole a name left.
    whole = not key.startswith(cut) or key == cut
    rest = key.rpartition("/")[2] if whole else key.removeprefix(cut)
    parts = [part for part in rest.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValidationError(
            f"S3 key {key!r} would leave the channel directory",
            do="Rename the object, or choose a prefix that does not match it.",
        )
    if "\0" in rest or any(len(part.encode(errors="replace")) > _LONGEST_NAME for part in parts):
        raise ValidationError(
            f"S3 key {key!r} cannot be a file name (a NUL, or a part above {_LONGEST_NAME} bytes)",
            do="Rename the object.",
        )
    return PurePosixPath(*parts)


def _refuse_clashes(files: Mapping[str, PurePosixPath], directories: set[PurePosixPath]) -> None:
    owners: dict[PurePosixPath, str] = {}
    for key, path in files.items():
        if path in owners:
            raise _clash(owners[path], key, path)
        owners[path] = key
    for key, path in files.items():
        for parent in path.parents:
            if parent in owners:
                raise _clash(owners[parent], key, parent)
    for directory in directories:
        for one in (directory, *directory.parents):
            if one in owners:
                raise _clash(owners[one], f"{directory}/", one)


def _clash(first: str, second: str, path: PurePosixPath) -> ValidationError:
    return ValidationError(
        f"S3 keys {first!r} and {second!r} both need the path {str(path)!r} in the channel",
        do="Rename one of the objects, or choose a narrower prefix.",
    )
