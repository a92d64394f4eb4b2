"""An input channel whose files are put together before the hosts start: by hard links, from the cache or from this disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from hotfire.runtime import download
from hotfire.runtime.backend import Mount, MountMode
from hotfire.runtime.channel_parts import Feeds, Item, Size, manifest_text, target_of
from hotfire.runtime.copies import copy_file
from hotfire.runtime.data_settings import CACHE_LIMIT
from hotfire.runtime.errors import DataError
from hotfire.runtime.events import Note, Observer
from hotfire.runtime.keys import KeyTree
from hotfire.runtime.layout import ML_ROOT
from hotfire.runtime.listing import Listing, Object
from hotfire.runtime.object_cache import ObjectCache
from hotfire.runtime.s3 import S3, S3Object
from hotfire.runtime.sharding import Assignment
from hotfire.runtime.spec import Channel
from hotfire.runtime.storage import human, local_fault, replacing


@dataclass(frozen=True, kw_only=True)
class TreeInput:
    """Objects as files below the channel directory of each host, all there before it starts (contract 3.2)."""

    channel: Channel
    hosts: frozenset[str]
    listing: Listing
    tree: KeyTree
    assignment: Assignment
    staging: Path
    """The tree of all hosts; of each host in its own directory beside it when they differ."""
    cache: ObjectCache
    cache_limit: int = CACHE_LIMIT
    s3: S3 = field(repr=False)
    mode: MountMode = MountMode.COPY_ON_WRITE
    has_manifest: bool = True
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.channel.channel_name

    @property
    def differ(self) -> bool:
        """Whether each host has a tree of its own."""
        return self.assignment.sharded and len(self.hosts) > 1

    def root(self, host: str) -> Path:
        """Where the tree of ``host`` is put together. No channel can be named like the directory of a host: '@' is no character of channel names."""
        return self.staging.parent / f"@{host}" / self.name if self.differ else self.staging

    def share(self, host: str) -> Sequence[Object]:
        """What ``host`` gets."""
        return [self.listing.objects[n] for n in self.assignment.order(host)]

    def mounts(self, host: str, ml_root: PurePosixPath = ML_ROOT) -> tuple[Mount, ...]:
        if host not in self.hosts:
            return ()
        target = target_of(self.channel, ml_root)
        return (Mount(source=self.root(host), target=target, mode=self.mode),)

    def manifest(self) -> str | None:
        """All objects, also those of other hosts (contract 3.5)."""
        return manifest_text(self.listing.prefix, self.listing.uris) if self.has_manifest else None

    def size(self) -> Size:
        found = self._used()
        return Size(len(found), sum(one.size for one in found))

    def preview(self, host: str, epoch: int) -> Iterator[Item]:
        for one in self.share(host):
            yield Item(uri=one.uri, bytes=one.size, path=str(self.tree.files[one.key]))

    def _used(self) -> list[Object]:
        """What some host gets."""
        numbers = {n for host in self.hosts for n in self.assignment.order(host)}
        return [self.listing.objects[n] for n in sorted(numbers)]

    def to_download(self) -> int:
        return sum(one.size for one in self._absent())

    def _remote(self) -> list[S3Object]:
        return [one for one in self._used() if isinstance(one, S3Object)]

    def _absent(self) -> list[S3Object]:
        return [one for one in self._remote() if not self.cache.has(one)]

    @contextmanager
    def materialise(self, observer: Observer, feeds: Feeds) -> Iterator[None]:
        self._download(observer)
        copied = 0
        try:
            for host in sorted(self.hosts) if self.differ else sorted(self.hosts)[:1]:
                copied += self._assemble(self.root(host), self.share(host))
        except FileNotFoundError as error:
            raise DataError(
                f"Data download failed: {error.filename} went from the cache or from its place meanwhile",
                do="Start the job again, and leave the files alone while it starts.",
            ) from error
        except OSError as error:
            raise local_fault(
                error, self.staging, "Free space on that disk, or choose another by HOTFIRE_HOME."
            ) from error
        if copied:
            text = f"channel {self.name}: {human(copied)} copied, because the job directory is on another file system"
            observer(Note(text=text))
        yield

    def _download(self, observer: Observer) -> None:
        remote, absent = self._remote(), self._absent()
        if not remote:
            return
        if absent:
            wanted = [download.Wanted(one, self.cache.path(one)) for one in absent]
            download.download(self.s3.client, wanted, observer, f"channel {self.name}")
            self.cache.label(absent)
        for one in remote:
            self.cache.touch(one)
        got = sum(one.size for one in absent)
        found = f"channel {self.name}: {len(remote)} objects, {human(sum(o.size for o in remote))}"
        how = f"{human(got)} downloaded" if absent else "all in the cache, nothing was downloaded"
        observer(Note(text=f"{found}; {how}"))

    def _assemble(self, root: Path, share: Sequence[Object]) -> int:
        """The tree of one host, or of all: returns the bytes that could not be linked."""
        root.mkdir(parents=True, exist_ok=True)
        for directory in self.tree.directories:
            (root / directory).mkdir(parents=True, exist_ok=True)
        made: set[PurePosixPath] = set()
        copied = 0
        for one in share:
            path = self.tree.files[one.key]
            if path.parent not in made:
                (root / path.parent).mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            source = self.cache.path(one) if isinstance(one, S3Object) else one.path.resolve()
            copied += 0 if link_or_copy(source, root / path) else one.size
        if any(isinstance(one, S3Object) for one in share):
            # Only now: what is linked stays, so a channel above the limit does not lose its own objects.
            self.cache.shrink(self.cache_limit)
        return copied


def link_or_copy(source: Path, target: Path) -> bool:
    """``target`` is ``source``: True by a hard link, False by a copy where the file system has none."""
    try:
        target.hardlink_to(source)
    except FileExistsError:
        if target.samefile(source):
            return True
        target.unlink()
        return link_or_copy(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        # EXDEV (another file system), EMLINK, EPERM (no hard links there, or a file of somebody else)
        with replacing(target) as temporary:
            copy_file(source, temporary, lambda _: None)
        return False
    return True
