"""What a supervisor that was killed left on the engine: found by label, removed when nobody owns it any more."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotfire.containers import engine as engines
from hotfire.containers.engine import Engine, Owned
from hotfire.runtime.backends.docker_labels import (
    DIRECTORY,
    JOB,
    SESSION,
    abandoned,
    origin,
)
from hotfire.runtime.errors import ValidationError


@dataclass(frozen=True, kw_only=True)
class Orphan:
    """One thing on the engine. ``sure`` is False where only whoever made it could say whether it is in use."""

    kind: str
    id: str
    name: str
    job: str
    directory: Path
    """Of the attempt's hosts."""
    sure: bool = True


def find(environ: Mapping[str, str]) -> list[Orphan]:
    """Everything with our label whose session has ended, or may have; containers first.

    Raises:
        ValidationError: there is no engine, or it is not ours to use.
    """
    engine = engines.connect(environ)
    try:
        return _among(engine.owned(SESSION))
    finally:
        engine.close()


def _among(owned: Sequence[Owned]) -> list[Orphan]:
    here = origin()
    judged = [(one, abandoned(one.labels, here)) for one in owned]
    return [
        Orphan(
            kind=one.kind,
            id=one.id,
            name=one.name,
            job=one.labels.get(JOB, ""),
            directory=Path(one.labels.get(DIRECTORY, "")),
            sure=verdict is True,
        )
        for one, verdict in judged
        if verdict is not False
    ]


def remove(orphans: Sequence[Orphan], environ: Mapping[str, str]) -> None:
    """Remove them; containers that still run are killed."""
    engine = engines.connect(environ)
    try:
        for orphan in sorted(orphans, key=lambda one: _ORDER.index(one.kind)):
            _remove(engine, orphan)
    finally:
        engine.close()


_ORDER = ("container", "network", "volume")


def _remove(engine: Engine, orphan: Orphan) -> None:
    engine.remove(Owned(kind=orphan.kind, id=orphan.id, name=orphan.name, labels={}))


def sweep(environ: Mapping[str, str]) -> list[str]:
    """Remove what certainly nobody owns; the names of its jobs. Nothing where no engine can be asked.

    For commands like ``hotfire ps``, which have found a job without its supervisor.
    """
    try:
        found = [one for one in find(environ) if one.sure]
        remove(found, environ)
    except ValidationError:
        return []
    return sorted({one.job for one in found})


def engine_at_hand(environ: Mapping[str, str]) -> bool:
    """Whether there is a socket to ask at all; costs no import of the SDK."""
    path = engines.address(environ).removeprefix("unix://")
    return os.access(path, os.R_OK | os.W_OK)
