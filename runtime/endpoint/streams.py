"""A host's log as a stream of CloudWatch events, read from the job's own files: nothing is copied and nothing is lost.

One stream per host joins what the endpoint says about the job (first host only) and the logs of all attempts. An
event is one line. When a line was printed is not in the file, so the moment in which it was first seen whole counts,
and is written down: timestamps never change and never go backwards, which the clients rely on.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotfire.runtime.layout import JobDir
from hotfire.runtime.observe import log_pieces
from hotfire.runtime.observe.metrics import escape

EVENT_BYTES = 256 * 1024 - 26
"""Longest message of an event; longer lines become several (contract 6.1)."""
PAGE_BYTES = 1 << 20
EVENT_OVERHEAD = 26
"""What every event counts beside its message."""
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class LogEvent:
    """``begin`` and ``end`` are offsets in the joined log; ``time`` is in milliseconds since the epoch."""

    begin: int
    end: int
    time: int
    message: str


@dataclass(frozen=True, slots=True)
class Part:
    """One of the logs that are read as one; only the last one still grows. ``begin`` is its offset in the whole."""

    path: Path
    begin: int
    end: int

    def read(self, begin: int, end: int) -> bytes:
        """What of ``[begin, end)`` is in this part; offsets are those of the whole."""
        begin, end = max(begin, self.begin), min(end, self.end)
        if begin >= end:
            return b""
        return log_pieces.read(self.path, begin - self.begin, end - self.begin)


def joined(paths: Sequence[Path]) -> tuple[Part, ...]:
    """The logs that exist, one behind the other."""
    found: list[Part] = []
    for path in paths:
        begin = found[-1].end if found else 0
        try:
            size, _ = log_pieces.extent(path)
            found.append(Part(path, begin, begin + size))
        except FileNotFoundError:
            continue
    return tuple(found)


class Stream:
    """The log of one host of one job. Safe to share between threads."""

    def __init__(self, job_dir: JobDir, host: str, created: int) -> None:
        """``created``: of the job, in milliseconds since the epoch."""
        self.name = f"{job_dir.name}/{host}-{created}"
        self.created = created
        self.times: list[int] = []
        """Milliseconds since the epoch, each for the bytes from the offset at the same place on."""
        self._offsets: list[int] = []
        self._seen = 0
        self._job_dir = job_dir
        self._host = host
        self._lock = threading.Lock()
        self._recall()

    def look(self, *, ended: bool) -> Log:
        """The whole lines that are there now; the new ones get their time.

        Args:
            ended: the job is terminal, so a last line without its newline is whole.
        """
        with self._lock:
            attempts = [
                self._job_dir.host(number, self._host).log for number in self._job_dir.attempts()
            ]
            first = [self._job_dir.banner] if self._host == "algo-1" else []
            parts = joined([*first, *attempts])
            end = parts[-1].end if parts else 0
            if parts and not ended:
                end = _last_line(parts[-1], self._seen)
            if end > self._seen:
                self._remember(self._moment(parts), end)
            return Log(parts, self._seen, tuple(self._offsets), tuple(self.times), self.created)

    def _moment(self, parts: Sequence[Part]) -> int:
        if self.times:
            return max(time.time_ns() // 1_000_000, self.times[-1])
        # What was there before anybody looked was written no later than its file was.
        last = max(log_pieces.extent(part.path)[1] for part in parts) // 1_000_000
        return max(last, self.created)

    def _recall(self) -> None:
        try:
            text = self._job_dir.log_times(self._host).read_text(encoding="ascii")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            end, moment = (int(word) for word in line.split())
            self._note(moment, end)

    def _note(self, moment: int, end: int) -> None:
        self._offsets.append(self._seen)
        self.times.append(moment)
        self._seen = end

    def _remember(self, moment: int, end: int) -> None:
        self._note(moment, end)
        try:
            with self._job_dir.log_times(self._host).open("a", encoding="ascii") as out:
                out.write(f"{end} {moment}\n")
        except OSError:
            # A full disk, or a job that is being deleted: known as long as the server lives.
            return


def _last_line(part: Part, at_least: int) -> int:
    """Where the line begins that has no end yet."""
    begin = max(part.begin, at_least)
    position = part.end
    while position > begin:
        block = part.read(max(begin, position - _BLOCK), position)
        if not block:
            break
        found = block.rfind(b"\n")
        if found >= 0:
            return position - len(block) + found + 1
        position -= len(block)
    return begin


@dataclass(frozen=True, slots=True)
class Log:
    """A stream at one moment: events up to ``end``, all final."""

    parts: tuple[Part, ...]
    end: int
    offsets: tuple[int, ...]
    times: tuple[int, ...]
    created: int

    def time_at(self, offset: int) -> int:
        found = bisect.bisect_right(self.offsets, offset) - 1
        return self.times[found] if found >= 0 else self.created

    def offset_at(self, moment: int | None, default: int) -> int:
        """Where the first event begins that is not older than ``moment``."""
        if moment is None:
            return default
        found = bisect.bisect_left(self.times, moment)
        return self.offsets[found] if found < len(self.offsets) else self.end

    def forward(self, begin: int, end: int) -> Iterator[LogEvent]:
        """The events that begin in ``[begin, end)``; ``begin`` is where one begins."""
        end = min(end, self.end)
        for part in self.parts:
            begin = max(begin, part.begin)
            stop = min(part.end, self.end)
            while begin < min(end, part.end):
                data = part.read(begin, min(begin + PAGE_BYTES, stop))
                if not data:
                    return
                for line in _lines(data, last=begin + len(data) == stop):
                    if begin >= end:
                        return
                    message = message_of(line)
                    yield LogEvent(begin, begin + len(line), self.time_at(begin), message)
                    begin += len(line)

    def start_of_page(self, end: int, least: int) -> int:
        """Where events begin that fill about a page before ``end``, not before ``least``."""
        begin = max(least, end - PAGE_BYTES)
        if begin == least:
            return least
        for part in self.parts:
            if part.begin <= begin < part.end:
                found = part.read(begin, end).find(b"\n") + 1
                return begin + found if found else min(part.end, end)
        return begin


def _lines(data: bytes, *, last: bool) -> Iterator[bytes]:
    """Whole lines with their newlines, cut where they are too long; the rest of ``data`` only if it is the last."""
    position = 0
    while position < len(data):
        stop = data.find(b"\n", position, position + EVENT_BYTES) + 1
        if not stop:
            if len(data) - position >= EVENT_BYTES:
                stop = position + EVENT_BYTES
            elif last:
                stop = len(data)
            else:
                return
        yield data[position:stop]
        position = stop


def message_of(line: bytes) -> str:
    """A line as it arrives: control characters as ``#`` and three octal digits (contract 6.1)."""
    return escape(line.rstrip(b"\n")).decode("utf-8", "replace")
