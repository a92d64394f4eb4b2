"""When the lines of a host's log were printed: noted beside the log while it grows, and put together with it again.

Hosts write plain files, so a time is when the line was first seen, about 20 ms after it was printed. A note is a line
``OFFSET MILLISECONDS``: the bytes from there on, and before the next note, were seen then (since the epoch).
"""

from __future__ import annotations

import bisect
import functools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Self

from hotfire.runtime.events import Event, LogChunk
from hotfire.runtime.layout import HostDir
from hotfire.runtime.observe import log_pieces
from hotfire.runtime.observe.metrics import LINE_CAP, escape

NOTE_SECONDS = 0.1
"""Least time between two notes: the resolution of a time, and what a busy log costs."""

_JSON = json.JSONEncoder(ensure_ascii=False)


@functools.lru_cache(maxsize=64)
def _iso(milliseconds: int) -> str:
    """Many lines have one time, and its text would be half of what a line costs."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


class TimeNotes:
    """Writes the notes of one log; a disk that is full costs notes, not the job."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = float("-inf")

    def seen(self, offset: int) -> None:
        """New bytes begin at ``offset``."""
        now = time.monotonic()
        if now - self._last < NOTE_SECONDS:
            return
        self._last = now
        try:
            with self._path.open("a", encoding="ascii") as out:
                out.write(f"{offset} {time.time_ns() // 1_000_000}\n")
        except OSError:
            return


@dataclass
class _Host:
    """One log on its way out: what was read, and what of it has no end yet."""

    offsets: list[int]
    times: list[int]
    there: int
    """Bytes that were there before anybody looked: what comes later comes now."""
    at: int = 0
    pending: bytes = b""

    @classmethod
    def of(cls, directory: HostDir) -> Self:
        try:
            text = directory.log_times.read_text(encoding="ascii")
            there, _ = log_pieces.extent(directory.log)
        except FileNotFoundError:
            return cls([], [], 0)
        notes = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return cls([int(one) for one, _ in notes], [int(one) for _, one in notes], there)

    def time(self) -> int:
        """Of the line that begins at ``at``."""
        found = bisect.bisect_right(self.offsets, self.at) - 1
        if self.at >= self.there or found < 0:
            return time.time_ns() // 1_000_000
        return self.times[found]


@dataclass
class JsonLines:
    """An observer of log chunks that writes a JSON document a line: timestamp, host, attempt, message.

    Messages are as CloudWatch shows them: control characters as ``#`` and three octal digits, and a line longer than
    256 KiB in pieces (contract 6.1).
    """

    out: BinaryIO
    _attempt: int = 0
    _hosts: dict[str, _Host] = field(default_factory=dict)

    def begin(self, attempt: int, dirs: Mapping[str, HostDir]) -> Self:
        """The chunks that follow are of this attempt, from the beginning of its logs on."""
        self._attempt = attempt
        self._hosts = {host: _Host.of(directory) for host, directory in dirs.items()}
        return self

    def __call__(self, event: Event) -> None:
        if not isinstance(event, LogChunk):
            return
        host = self._hosts[event.host]
        *lines, host.pending = (host.pending + event.data).split(b"\n")
        for line in lines:
            self._write(event.host, host, line)
            host.at += 1
        while len(host.pending) > LINE_CAP:
            piece, host.pending = host.pending[:LINE_CAP], host.pending[LINE_CAP:]
            self._write(event.host, host, piece)
        self.out.flush()

    def _write(self, name: str, host: _Host, line: bytes) -> None:
        for begin in range(0, max(1, len(line)), LINE_CAP):
            piece = line[begin : begin + LINE_CAP]
            document = {
                "timestamp": _iso(host.time()),
                "host": name,
                "attempt": self._attempt,
                "message": escape(piece).decode("utf-8", "replace"),
            }
            self.out.write(_JSON.encode(document).encode() + b"\n")
            host.at += len(piece)
