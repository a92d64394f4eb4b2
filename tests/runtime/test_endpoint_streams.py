"""Logs as streams of events: whole lines, stable offsets and times, any page size, both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.runtime.endpoint.streams import EVENT_BYTES, Log, Stream, joined, message_of
from hotfire.runtime.events import ignore
from hotfire.runtime.layout import JobDir
from hotfire.runtime.observe.log_pieces import Rotation

CREATED = 1_700_000_000_000


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    (tmp_path / "job").mkdir()
    return JobDir(tmp_path / "job")


def write(job: JobDir, data: bytes, *, attempt: int = 1, host: str = "algo-1") -> None:
    path = job.host(attempt, host).log
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as out:
        out.write(data)


def lines(log: Log, begin: int = 0) -> list[str]:
    return [event.message for event in log.forward(begin, log.end)]


def test_only_whole_lines_are_told_until_the_end(job: JobDir) -> None:
    stream = Stream(job, "algo-1", CREATED)
    assert lines(stream.look(ended=False)) == []
    write(job, b"one\ntw")
    assert lines(stream.look(ended=False)) == ["one"]
    write(job, b"o\n\nlast")
    assert lines(stream.look(ended=False)) == ["one", "two", ""]
    assert lines(stream.look(ended=True)) == ["one", "two", "", "last"]


def test_attempts_and_the_banner_are_one_stream(job: JobDir) -> None:
    job.banner.write_text("about the job\n")
    write(job, b"first\ncut off")
    stream = Stream(job, "algo-1", CREATED)
    assert lines(stream.look(ended=False)) == ["about the job", "first"]
    write(job, b"second\n", attempt=2)
    assert lines(stream.look(ended=False)) == ["about the job", "first", "cut off", "second"]
    assert lines(Stream(job, "algo-2", CREATED).look(ended=True)) == []


def test_times_are_kept_by_another_reader(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [2_000_000_000_000]
    monkeypatch.setattr(
        "hotfire.runtime.endpoint.streams.time.time_ns", lambda: moment[0] * 1_000_000
    )
    stream = Stream(job, "algo-1", CREATED)
    seen = []
    for number in range(4):
        write(job, f"line {number}\nunfinished ".encode())
        moment[0] += 1000
        log = stream.look(ended=False)
        seen.append([(event.message, event.time) for event in log.forward(0, log.end)])
    moment[0] -= 10**6  # a clock that is set back
    write(job, b"end\n")
    log = stream.look(ended=True)
    last = [(event.message, event.time) for event in log.forward(0, log.end)]
    again = Stream(job, "algo-1", CREATED).look(ended=True)
    assert [(event.message, event.time) for event in again.forward(0, again.end)] == last
    for earlier in seen:
        assert last[: len(earlier)] == earlier
    times = [time for _, time in last]
    assert times == sorted(times)
    assert len(set(times)) == 4  # the line after the clock was set back counts as the one before
    assert lines(log, log.offset_at(times[2], 0)) == [
        text for text, time in last if time >= times[2]
    ]
    assert log.offset_at(times[-1] + 1, 0) == log.end


def test_a_log_in_pieces_has_the_same_events(job: JobDir) -> None:
    whole = b"".join(b"line %d\n" % number for number in range(3_000))
    write(job, b"first attempt\n")
    write(job, whole, attempt=2)
    stream = Stream(job, "algo-1", CREATED)
    log = stream.look(ended=False)
    before = list(log.forward(0, log.end))
    host = job.host(2, "algo-1")
    host.scratch.mkdir()
    rotation = Rotation(host.log, host.scratch, ignore, 5_000)
    for end in (rotation.read_to, rotation.finish):
        end(len(whole))
        for again in (stream, Stream(job, "algo-1", CREATED)):
            log = again.look(ended=True)
            assert list(log.forward(0, log.end)) == before
            middle = before[1_500]
            assert next(log.forward(middle.begin, log.end)) == middle
    assert not host.log.exists()


def test_long_lines_are_cut(job: JobDir) -> None:
    write(job, b"x" * (2 * EVENT_BYTES + 5) + b"\nafter\n")
    found = lines(Stream(job, "algo-1", CREATED).look(ended=False))
    assert [len(text) for text in found] == [EVENT_BYTES, EVENT_BYTES, 5, 5]


@given(
    pieces=st.lists(st.lists(st.binary(max_size=12), max_size=6), min_size=1, max_size=4),
    ended=st.booleans(),
)
def test_every_byte_is_in_one_event(
    tmp_path_factory: Any, pieces: list[list[bytes]], ended: bool
) -> None:
    job = JobDir(tmp_path_factory.mktemp("job"))
    for attempt, texts in enumerate(pieces, 1):
        write(job, b"\n".join(texts), attempt=attempt)
    log = Stream(job, "algo-1", CREATED).look(ended=ended)
    events = list(log.forward(0, log.end))
    assert [event.begin for event in events] == [0, *(event.end for event in events)][: len(events)]
    parts = joined([job.host(number, "algo-1").log for number in job.attempts()])
    whole = b"".join(part.read(part.begin, part.end) for part in parts)
    assert (events[-1].end if events else 0) == log.end <= len(whole)
    assert not ended or log.end == len(whole)
    for number, event in enumerate(events):
        assert event.message == message_of(whole[event.begin : event.end])
        assert list(log.forward(event.begin, log.end)) == events[number:]


def test_control_characters_arrive_as_the_service_writes_them() -> None:
    assert message_of(b"a\tb\rc\x1b[1m\0\xff\n") == "a#011b#015c#033[1m#000\ufffd"
