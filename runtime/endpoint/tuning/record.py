"""What is kept of a tuning job: ``tuning/NAME/`` with request, record and tags, each whole at every moment."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hotfire.runtime.errors import ResourceInUse, ValidationError
from hotfire.runtime.layout import JobDir
from hotfire.runtime.store import write_json

IN_PROGRESS, STOPPING = "InProgress", "Stopping"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training job. ``made``: it has been created; ``result``: its summary once it has ended."""

    name: str
    point: Mapping[str, float | str]
    parameters: Mapping[str, str]
    made: bool = False
    result: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Record:
    """Times are seconds since the epoch."""

    name: str
    region: str
    seed: int
    created: float
    modified: float
    ended: float | None = None
    status: str = IN_PROGRESS
    reason: str = ""
    ending: str = ""
    """Its last status, once it is decided and training jobs have yet to end."""
    trials: tuple[Trial, ...] = ()

    @property
    def terminal(self) -> bool:
        return self.ended is not None

    def with_trial(self, trial: Trial) -> Record:
        """``trial`` in the place of the one with its name, or as the last one."""
        names = [one.name for one in self.trials]
        if trial.name not in names:
            return replace(self, trials=(*self.trials, trial))
        at = names.index(trial.name)
        return replace(self, trials=(*self.trials[:at], trial, *self.trials[at + 1 :]))


class Shelf:
    """All tuning jobs of a store, in memory and on disk; one server at a time has it. Safe to share between threads."""

    def __init__(self, home: Path) -> None:
        self._root = home / "tuning"
        self._records: dict[str, Record] = {}
        self.lock = threading.RLock()
        for path in sorted(self._root.glob("*/record.json")):
            # One that cannot be read must not keep the server from the others.
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                raw = json.loads(path.read_text(encoding="utf-8"))
                trials = tuple(Trial(**one) for one in raw.pop("trials"))
                self._records[path.parent.name] = Record(**raw, trials=trials)

    def directory(self, name: str) -> JobDir:
        """Its request, record and tags have the names that those of a training job have."""
        return JobDir(self._root / name)

    def records(self) -> list[Record]:
        with self.lock:
            return list(self._records.values())

    def get(self, name: str) -> Record | None:
        """Names ignore case, as the service's do."""
        with self.lock:
            found = (one for one in self._records.values() if one.name.lower() == name.lower())
            return next(found, None)

    def request(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self.directory(name).request.read_text(encoding="utf-8")))

    def create(self, record: Record, request: Mapping[str, Any]) -> None:
        """Reserve the name.

        Raises:
            ResourceInUse: it is taken.
            ValidationError: the store cannot be written.
        """
        with self.lock:
            if self.get(record.name):
                raise ResourceInUse(
                    f"Hyperparameter tuning job names must be unique within an AWS account and region, and {record.name} "
                    "already exists."
                )
            folder = self.directory(record.name)
            try:
                folder.root.mkdir(parents=True, exist_ok=True)
                write_json(folder.request, request)
            except OSError as error:
                raise ValidationError(
                    f"{folder.root} cannot be written: {error.strerror}.",
                    do="Set HOTFIRE_HOME to a directory of yours.",
                ) from error
            self.save(record)

    def save(self, record: Record) -> None:
        with self.lock:
            write_json(self.directory(record.name).record, asdict(record))
            self._records[record.name] = record

    def remove(self, name: str) -> None:
        with self.lock:
            # The record first: without it there is no such job, whatever else is left.
            self.directory(name).record.unlink()
            del self._records[name]
            shutil.rmtree(self.directory(name).root, ignore_errors=True)
