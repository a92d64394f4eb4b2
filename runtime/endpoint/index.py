"""All jobs of the store as rows in memory, made true by one ``stat`` each: what List and Search look through.

A job's record is replaced as a whole, so a record file that is the same file is the same record. A job that is not
terminal is asked anew every time, because the end of its supervisor changes no file.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from hotfire.runtime.errors import HotfireError, ResourceNotFound
from hotfire.runtime.layout import JobDir
from hotfire.runtime.status import JobRecord
from hotfire.runtime.store import Store

_RECORD = JobDir(Path()).record.name
Mark = tuple[int, int, int]
"""Modification time in ns, inode and size of a file."""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    mark: Mark
    record: JobRecord
    created: float
    """Seconds since the epoch, as ``modified``."""
    modified: float
    status: str
    ended: bool


class Index:
    """Rows of one store. Safe to share between threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Texts and not paths: with thousands of jobs, joining paths costs more than looking at the files.
        self._jobs = str(store.jobs)
        self._rows: dict[str, Row] = {}
        self._lock = threading.Lock()

    def rows(self) -> list[Row]:
        """A row for every job, in no order. A record that cannot be read hides its job alone."""
        try:
            names = os.listdir(self._jobs)  # noqa: PTH208
        except FileNotFoundError:
            names = []
        with self._lock:
            found = {name: self._rows.get(name) for name in names if not name.startswith(".")}
            rows = {name: row for name, known in found.items() if (row := self._true(name, known))}
            self._rows = rows
            return list(rows.values())

    def row(self, name: str) -> Row:
        """The row of one job.

        Raises:
            ResourceNotFound: no such job.
            PlatformError: its record cannot be read.
        """
        if known := self._rows.get(name):
            with contextlib.suppress(HotfireError):
                return self._look(name, known)
        self._store.open(name)
        with self._lock:
            row = self._look(name, self._rows.get(name))
            self._rows[name] = row
            return row

    def by_arn_name(self, name: str) -> str:
        """The job that an ARN names; ARNs are in lower case whatever the job's name is (contract 1.2).

        Raises:
            ResourceNotFound: no such job.
        """
        with contextlib.suppress(ResourceNotFound):
            return self._store.open(name).name
        for row in self.rows():
            if row.name.lower() == name:
                return row.name
        raise ResourceNotFound("Requested resource not found.")

    def _true(self, name: str, known: Row | None) -> Row | None:
        try:
            return self._look(name, known)
        except (HotfireError, OSError):
            return None

    def _look(self, name: str, known: Row | None) -> Row:
        path = f"{self._jobs}/{name}/{_RECORD}"
        if known and known.ended and known.mark == mark_of(path):
            return known
        record = self._store.record(name)
        return Row(
            name=name,
            mark=mark_of(path),
            record=record,
            created=record.creation_time.timestamp(),
            modified=(record.last_modified_time or record.creation_time).timestamp(),
            status=record.status.value,
            ended=record.status.terminal,
        )


def mark_of(path: str | os.PathLike[str]) -> Mark:
    """What tells one version of a file from another; zeros where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ino, found.st_size)
