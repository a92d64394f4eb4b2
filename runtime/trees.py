"""The directory trees that several hosts leave behind, merged into one list of members for an archive (contract 5.6)."""

from __future__ import annotations

import filecmp
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file, directory or symbolic link; ``name`` is relative to its host's tree, with ``/``."""

    name: str
    host: str
    path: Path
    status: os.stat_result
    link: str = ""

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)

    @property
    def size(self) -> int:
        """Bytes of a regular file; 0 for the rest."""
        return self.status.st_size if self.is_file else 0


@dataclass(frozen=True)
class Merged:
    """``members`` in byte order of their names, each directory before what is in it."""

    members: tuple[Member, ...]
    warnings: tuple[str, ...]

    @property
    def files(self) -> tuple[Member, ...]:
        return tuple(one for one in self.members if one.is_file)

    @property
    def size(self) -> int:
        return sum(one.size for one in self.members)

    def largest(self, count: int = 5) -> tuple[tuple[str, int], ...]:
        """Names and bytes of the largest files."""
        ordered = sorted(self.files, key=lambda one: (-one.size, one.name))
        return tuple((one.name, one.size) for one in ordered[:count])


def merge(sources: Sequence[tuple[str, Path]]) -> Merged:
    """Walk every host's tree. Where names clash the last host wins, with a warning unless the contents are the same.

    Left out with a warning: sockets, FIFOs, devices, symbolic links that leave the tree, and what cannot be read.
    A tree that does not exist is empty.
    """
    warnings: list[str] = []
    found: dict[str, Member] = {}
    for host, top in sources:
        for one in _scan(host, top, warnings):
            old = found.get(one.name)
            if old is not None and not (old.is_dir and one.is_dir):
                _replace(found, old, one, warnings)
            found[one.name] = one
    ordered = sorted(found.values(), key=lambda one: os.fsencode(one.name).split(b"/"))
    return Merged(tuple(ordered), tuple(warnings))


def _replace(found: dict[str, Member], old: Member, new: Member, warnings: list[str]) -> None:
    if old.is_dir:
        for name in [name for name in found if name.startswith(old.name + "/")]:
            del found[name]
    if not _same(old, new):
        warnings.append(
            f"{printable(new.name)}: {old.host} and {new.host} wrote different contents; {new.host}'s is kept"
        )


def _same(old: Member, new: Member) -> bool:
    if old.is_file and new.is_file:
        try:
            return old.size == new.size and filecmp.cmp(old.path, new.path, shallow=False)
        except OSError:
            return False
    return bool(old.link) and old.link == new.link


def _scan(host: str, top: Path, warnings: list[str]) -> Iterator[Member]:
    real = os.path.realpath(top)

    def walk(directory: Path, prefix: str) -> Iterator[Member]:
        try:
            with os.scandir(directory) as found:
                entries = sorted(found, key=lambda entry: os.fsencode(entry.name))
        except FileNotFoundError:
            return
        except OSError as error:
            warnings.append(f"{printable(prefix or '.')} on {host}: {error.strerror}; left out")
            return
        for entry in entries:
            name = prefix + entry.name
            member, why = _member(host, name, Path(entry.path), real)
            if member is None:
                warnings.append(f"{printable(name)} on {host}: {why}; left out")
                continue
            yield member
            if member.is_dir:
                yield from walk(member.path, name + "/")

    yield from walk(top, "")


def _member(host: str, name: str, path: Path, top: str) -> tuple[Member | None, str]:
    try:
        status = path.lstat()
        link = os.readlink(path) if stat.S_ISLNK(status.st_mode) else ""  # noqa: PTH115 verbatim
    except OSError as error:
        return None, error.strerror or str(error)
    if link and not _stays(path, link, top):
        return None, f"a link to {printable(link)}, outside the directory"
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode) or link):
        return None, "neither a file nor a directory"
    return Member(name=name, host=host, path=path, status=status, link=link), ""


def _stays(path: Path, link: str, top: str) -> bool:
    """Whether a link, followed on this machine, ends inside ``top``. Absolute ones mean another place when unpacked."""
    if os.path.isabs(link):  # noqa: PTH117 text, not a path of ours
        return False
    real = os.path.realpath(path)
    return real == top or real.startswith(top.rstrip("/") + "/")


def printable(name: str) -> str:
    """File names are bytes; what is not UTF-8 or would upset a terminal is escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in name
    )
