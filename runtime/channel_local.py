"""An input channel from this machine: found without a walk, mounted where it lies."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hotfire.runtime.backend import Mount, MountMode
from hotfire.runtime.channel_parts import (
    Feeds,
    Item,
    Size,
    manifest_text,
    nearest_names,
    target_of,
)
from hotfire.runtime.errors import DataError, ValidationError
from hotfire.runtime.events import Observer
from hotfire.runtime.layout import ML_ROOT
from hotfire.runtime.listing import LocalObject, local_object
from hotfire.runtime.spec import Channel
from hotfire.runtime.storage import LocalLocation, S3Location, local_fault, parse_uri

MANIFEST_LIMIT = 1000
"""Files up to which the manifest of a local channel names each of them.

The service writes one manifest per S3 File channel (contract 3.5). For local data we list at most this many files, so
that a channel of any size starts at once; above it the manifest holds its first line alone.
"""


def find(
    channel: Channel,
    hosts: frozenset[str],
    location: LocalLocation,
    uri: str,
    *,
    mode: MountMode = MountMode.COPY_ON_WRITE,
    has_manifest: bool = True,
) -> LocalInput:
    """The input of a local channel.

    ``uri`` is what the request says; ``location`` where the maps led.

    Raises:
        ValidationError: nothing is there, or it cannot be read as a directory or regular file.
    """
    name = channel.channel_name
    entries = _matches(location)
    if not entries:
        raise ValidationError(
            f"channel {name}: {location.path} does not exist", do=nearest_names(location.path)
        )
    for path in entries:
        _refuse_unreadable(name, path)
    notes: tuple[str, ...] = ()
    whole = location.path if entries == (location.path,) and location.path.is_dir() else None
    if whole is not None and not _some(whole):
        notes = (
            f"channel {name}: {whole} is empty; SageMaker refuses an S3 prefix without objects",
        )
    return LocalInput(
        channel=channel,
        hosts=hosts,
        entries=entries,
        whole=whole is not None,
        stem=location.path.name if entries != (location.path,) else "",
        uri=uri,
        notes=notes,
        mode=mode,
        has_manifest=has_manifest,
    )


def _some(directory: Path) -> bool:
    with os.scandir(directory) as found:
        return next(found, None) is not None


def _matches(location: LocalLocation) -> tuple[Path, ...]:
    """The path itself, or below a mapped prefix everything whose name starts like it, as on S3 (contract 3.2)."""
    path = location.path
    try:
        if not location.below:
            path.stat()
            return (path,)
        with os.scandir(path.parent) as found:
            names = sorted(entry.name for entry in found if entry.name.startswith(path.name))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise local_fault(error, path, "Check its name and rights.", ValidationError) from error
    return tuple(path.parent / name for name in names)


def _refuse_unreadable(name: str, path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise local_fault(error, path, "Repair the link or its rights.", ValidationError) from error
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise ValidationError(
            f"channel {name}: {path} is neither a directory nor a regular file",
            do="Name a directory or a file.",
        )
    if not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)):
        raise ValidationError(
            f"channel {name}: {path} cannot be read", do="Check its owner and mode."
        )


@dataclass(frozen=True, kw_only=True)
class LocalInput:
    """Data of this machine, mounted where it lies.

    ``entries`` is one directory that becomes the channel directory (``whole``), or files and directories that appear
    in it under their own names.
    """

    channel: Channel
    hosts: frozenset[str]
    entries: tuple[Path, ...]
    whole: bool
    uri: str
    stem: str = ""
    """What all names begin with where the prefix ends inside a name."""
    notes: tuple[str, ...] = ()
    mode: MountMode = MountMode.COPY_ON_WRITE
    has_manifest: bool = True

    @property
    def name(self) -> str:
        return self.channel.channel_name

    def mounts(self, host: str, ml_root: PurePosixPath = ML_ROOT) -> tuple[Mount, ...]:
        if host not in self.hosts:
            return ()
        target = target_of(self.channel, ml_root)
        return tuple(
            Mount(
                source=path.resolve(),
                target=target if self.whole else target / path.name,
                mode=self.mode,
            )
            for path in self.entries
        )

    def manifest(self) -> str | None:
        """First line the path (or the mapped key prefix), then a URI per file, up to :data:`MANIFEST_LIMIT`."""
        if not self.has_manifest:
            return None
        some = itertools.islice(self._files(), MANIFEST_LIMIT + 1)
        uris = sorted((self._uri(*one) for one in some), key=os.fsencode)
        return manifest_text(self.manifest_first, uris if len(uris) <= MANIFEST_LIMIT else [])

    @property
    def manifest_first(self) -> str:
        location = parse_uri(self.uri)
        return location.key if isinstance(location, S3Location) else str(location.path)

    def _uri(self, path: Path, relative: PurePosixPath) -> str:
        location = parse_uri(self.uri)
        if isinstance(location, LocalLocation):
            return path.as_uri()
        stem = location.key
        if self.whole:
            folder = stem if not stem or stem.endswith("/") else stem + "/"
            return S3Location(location.bucket, folder + str(relative)).uri
        return S3Location(location.bucket, stem[: stem.rfind("/") + 1] + str(relative)).uri

    def _files(self) -> Iterator[tuple[Path, PurePosixPath]]:
        for entry in self.entries:
            below = PurePosixPath() if self.whole else PurePosixPath(entry.name)
            if entry.is_dir():
                for path in _walk(entry):
                    yield path, below / path.relative_to(entry)
            else:
                yield entry, below

    def sizes(self) -> list[int]:
        """Bytes of every file, in no order."""
        return [path.stat().st_size for path, _ in self._files()]

    def size(self) -> Size:
        sizes = self.sizes()
        return Size(len(sizes), sum(sizes))

    def preview(self, host: str, epoch: int) -> Iterator[Item]:
        for one, path in self.objects():
            yield Item(uri=one.uri, bytes=one.size, path=str(path))

    def objects(self) -> list[tuple[LocalObject, PurePosixPath]]:
        """Every file with its place in the channel, in the order in which S3 would list the keys (UTF-8 bytes).

        Raises:
            ValidationError: one cannot be read.
        """
        found = [
            (local_object(path, self._uri(path, relative)), relative)
            for path, relative in self._files()
        ]
        return sorted(found, key=lambda pair: os.fsencode(str(pair[1])))

    def to_download(self) -> int:
        return 0

    @contextmanager
    def materialise(self, observer: Observer, feeds: Feeds) -> Iterator[None]:
        for entry in self.entries:
            if not entry.exists():
                raise DataError(
                    f"Data download failed: {entry} has gone since the job was created",
                    do="Put it back and start the job again.",
                )
        yield


def _walk(top: Path) -> Iterator[Path]:
    """Regular files below ``top``; links to files count, links to directories are not followed."""
    with os.scandir(top) as found:
        for entry in found:  # as they come: whoever wants only the first thousand pays for no more
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path))
            elif entry.is_file():
                yield Path(entry.path)
