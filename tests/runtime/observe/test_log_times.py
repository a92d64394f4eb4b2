"""Times of log lines: noted while the log grows, and told with it."""

from __future__ import annotations

import io
import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from hotfire.runtime.events import LogChunk
from hotfire.runtime.layout import HostDir
from hotfire.runtime.observe import log_times
from hotfire.runtime.observe.log_times import JsonLines, TimeNotes
from hotfire.runtime.observe.metrics import LINE_CAP


def told(directory: HostDir, cut: int = 1 << 20) -> list[dict[str, Any]]:
    out = io.BytesIO()
    lines = JsonLines(out)
    lines.begin(2, {"algo-1": directory})
    data = directory.log.read_bytes()
    for begin in range(0, len(data), cut):
        lines(LogChunk(host="algo-1", data=data[begin : begin + cut]))
    if not data.endswith(b"\n"):
        lines(LogChunk(host="algo-1", data=b"\n"))  # as the pump does
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_lines_have_the_time_of_their_note(tmp_path: Path) -> None:
    host = HostDir(tmp_path)
    host.log.write_bytes(b"one\ntw\to\xff\n\nlast")
    host.log_times.write_text("0 1000\n4 2500\n11 9000\n12 9")  # half a note at the end
    for cut in (1, 3, 100):
        found = told(host, cut)
        assert [(one["timestamp"], one["message"]) for one in found] == [
            ("1970-01-01T00:00:01.000+00:00", "one"),
            ("1970-01-01T00:00:02.500+00:00", "tw#011o\ufffd"),
            ("1970-01-01T00:00:02.500+00:00", ""),
            ("1970-01-01T00:00:09.000+00:00", "last"),
        ]
        assert {(one["host"], one["attempt"]) for one in found} == {("algo-1", 2)}


def test_what_comes_later_comes_now(tmp_path: Path) -> None:
    host = HostDir(tmp_path)
    host.log.write_bytes(b"old\n")
    host.log_times.write_text("0 1000\n")
    out = io.BytesIO()
    lines = JsonLines(out).begin(1, {"algo-1": host})
    before = time.time()
    lines(LogChunk(host="algo-1", data=b"old\nnew\n"))
    old, new = (
        datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp()
        for line in out.getvalue().splitlines()
    )
    assert old == 1 and before - 1 < new <= time.time()


def test_a_line_without_end_comes_in_pieces(tmp_path: Path) -> None:
    host = HostDir(tmp_path)
    host.log.write_bytes(b"x" * (2 * LINE_CAP + 5) + b"\ny\n")
    for cut in (1000, 1 << 20):
        assert [len(one["message"]) for one in told(host, cut)] == [LINE_CAP, LINE_CAP, 5, 1]


def test_a_busy_log_has_few_notes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(log_times, "NOTE_SECONDS", 3600)
    notes = TimeNotes(tmp_path / "log-times")
    for offset in range(1000):
        notes.seen(offset)
    assert (tmp_path / "log-times").read_text().split()[0] == "0"
    assert len((tmp_path / "log-times").read_text().splitlines()) == 1
    TimeNotes(Path("/dev/full")).seen(0)
