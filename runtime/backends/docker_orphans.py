"""What a supervisor that was killed left on the engine: found by label, removed when nobody owns it any more."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from hotfire.containers.engine import connect
from hotfire.containers.values import Owned
from hotfire.runtime.backends import docker_mounts
from hotfire.runtime.backends.docker_labels import (
    DIRECTORY,
    HOST,
    JOB,
    SESSION,
    abandoned,
    origin,
)
from hotfire.runtime.errors import PlatformError, ValidationError
from hotfire.runtime.events import Observer, ignore
from hotfire.runtime.layout import HostDir


@dataclass(frozen=True, kw_only=True)
class Orphan:
    """One thing on the engine. ``sure`` is False where only whoever made it could say whether it is in use."""

    owned: Owned
    sure: bool = True

    @property
    def kind(self) -> str:
        return self.owned.kind

    @property
    def name(self) -> str:
        return self.owned.name

    @property
    def job(self) -> str:
        return self.owned.labels.get(JOB, "")

    @property
    def directory(self) -> Path:
        """Of the attempt's hosts."""
        return Path(self.owned.labels.get(DIRECTORY, ""))


def find(environ: Mapping[str, str]) -> list[Orphan]:
    """Everything with our label whose session has ended, or may have; containers first.

    Raises:
        ValidationError: there is no engine, or it is not ours to use.
    """
    with closing(connect(environ)) as engine:
        return _among(engine.owned(SESSION))


def _among(owned: Sequence[Owned]) -> list[Orphan]:
    here = origin()
    judged = [(one, abandoned(one.labels, here)) for one in owned]
    return [
        Orphan(owned=one, sure=verdict is True) for one, verdict in judged if verdict is not False
    ]


def remove(orphans: Sequence[Orphan], environ: Mapping[str, str], observer: Observer) -> None:
    """Remove them; containers that still run are killed. What root wrote in them becomes the user's."""
    with closing(connect(environ)) as engine:
        for orphan in sorted(orphans, key=lambda one: _ORDER.index(one.kind)):
            engine.remove(orphan.owned)
            if HOST in orphan.owned.labels and _is_mine(orphan.directory):
                host = HostDir(orphan.directory / orphan.owned.labels[HOST])
                roots = (host.ml.root, host.scratch)
                labels = orphan.owned.labels
                docker_mounts.give_back(engine, orphan.owned.image, roots, labels, observer)


_ORDER = ("container", "network", "volume")


def _is_mine(directory: Path) -> bool:
    """Whoever may use the engine sees the containers of all users, and their files stay theirs."""
    try:
        return directory.stat().st_uid == os.getuid()
    except OSError:
        return False


def sweep(job: Path, environ: Mapping[str, str], observer: Observer = ignore) -> list[Orphan]:
    """Remove what a job has left that certainly nobody owns, and tell what it was. Nothing where no engine can be asked.

    ``job`` is its directory, which was found without a supervisor.
    """
    try:
        found = [
            one
            for one in find(environ)
            if one.sure and one.directory.is_relative_to(job.absolute())
        ]
        remove(found, environ, observer)
    except (ValidationError, PlatformError):
        return []
    return found
