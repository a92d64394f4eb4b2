"""What all kinds of input channels share: sizes, the place below /opt/ml, the manifest, hints at near names."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hotfire.runtime.errors import HotfireError
from hotfire.runtime.layout import HostDir, MlTree
from hotfire.runtime.spec import Channel
from hotfire.runtime.storage import nearest_existing


@dataclass(frozen=True)
class Size:
    """What a channel holds: regular files or objects, and their bytes."""

    files: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One object (or line of an augmented manifest) on its way to a host, for a preview."""

    uri: str
    bytes: int | None
    """None where only the stream will tell."""
    path: str = ""
    """Below the channel directory; nothing in Pipe mode."""


class Feeds:
    """What feeds the hosts of one attempt while they live, and the first thing that went wrong with it."""

    def __init__(self, dirs: Mapping[str, HostDir] | None = None) -> None:
        self.dirs = dirs or {}
        self.failure: HotfireError | None = None
        self._lock = threading.Lock()

    def fail(self, error: HotfireError) -> None:
        """The job cannot go on: its hosts wait for data that will not come. From any thread."""
        with self._lock:
            self.failure = self.failure or error

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self.failure is not None:
            raise self.failure


def target_of(channel: Channel, ml_root: PurePosixPath) -> PurePosixPath:
    return PurePosixPath(MlTree(Path(ml_root)).channel(channel.channel_name))


def manifest_text(prefix: str, uris: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in (prefix, *uris))


def nearest_names(path: Path) -> str:
    """The existing parent and the names in it that look most like what was asked for."""
    parent = nearest_existing(path)
    wanted = path.relative_to(parent).parts[0]
    if not parent.is_dir():
        return f"{parent} is a file, not a directory."
    try:
        names = sorted(path.name for path in parent.iterdir())
    except PermissionError:
        return f"{parent} exists but cannot be read."
    close = closest(wanted, names)
    if not names:
        return f"{parent} exists and is empty."
    return f"{parent} has: {', '.join(close)}."


def closest(wanted: str, names: Sequence[str], count: int = 5) -> list[str]:
    """Names most like ``wanted``; the first ones when none is."""
    return difflib.get_close_matches(wanted, names, n=count, cutoff=0.5) or list(names[:count])
