"""What a job's supervisor writes down while the job lives."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hotfire.runtime.control import Control
from hotfire.runtime.events import Event, LogChunk, Note, Observer, Transition
from hotfire.runtime.layout import JobDir
from hotfire.runtime.status import JobRecord, SecondaryStatus, utc_now
from hotfire.runtime.store import read_record, write_record


class Journal:
    """The job's record while it lives: every move is on disk before it is told."""

    def __init__(self, job_dir: JobDir, control: Control, observer: Observer) -> None:
        self.job_dir = job_dir
        self._control = control
        self.record: JobRecord = read_record(job_dir)
        self._observer = observer
        self._notes: list[str] = []
        self._began = utc_now(), time.monotonic()

    def now(self) -> datetime:
        """The time of day by the clock as it was at the start: a jump of the clock changes no duration."""
        moment, tick = self._began
        return moment + timedelta(seconds=time.monotonic() - tick)

    def move(self, status: SecondaryStatus, message: str, **changes: Any) -> None:
        now = self.now()
        record = replace(self.record.moved(status, message, now), **changes)
        write_record(self.job_dir, record)
        self.record = record
        self._observer(Transition(time=now, status=status, message=message))

    def __call__(self, event: Event) -> None:
        """Observe: keep the notes for ``describe`` and the receipt, pass everything on."""
        if isinstance(event, LogChunk):
            self._control.look(event)
        if isinstance(event, Note) and event.text not in self._notes:
            self._notes.append(event.text)
            # A full disk must not keep the job from its end for want of a note.
            with (
                contextlib.suppress(OSError),
                self.job_dir.notes.open("a", encoding="utf-8") as out,
            ):
                out.write(event.text + "\n")
        self._observer(event)
