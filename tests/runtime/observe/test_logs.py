"""Logs: every byte of every host, prefixes, and progress bars."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.runtime.events import Event, LogChunk
from hotfire.runtime.observe.logs import LogPrinter, LogPump


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(
    st.text(alphabet="aé\n\r☃ ", max_size=60),
    st.lists(st.integers(0, 200), max_size=6),
)
def test_one_host_comes_out_byte_for_byte(text: str, cuts: list[int]) -> None:
    data = text.encode()
    out = io.BytesIO()
    printer = LogPrinter(out, ("algo-1",), live=False)
    for piece in chunks(data, cuts):
        printer(LogChunk(host="algo-1", data=piece))
    printer.close()
    unfinished = data and not data.endswith(b"\n")
    assert out.getvalue() == data + (b"\n" if unfinished else b"")


@given(
    st.lists(st.sampled_from(["", "x", "wört", "a\rb"]), max_size=8),
    st.lists(st.integers(0, 200), max_size=6),
)
def test_several_hosts_get_a_prefix_on_every_line(lines: list[str], cuts: list[int]) -> None:
    data = "".join(line + "\n" for line in lines).encode()
    out = io.BytesIO()
    printer = LogPrinter(out, ("algo-1", "algo-10"), live=False)
    for piece in chunks(data, cuts):
        printer(LogChunk(host="algo-1", data=piece))
    printer.close()
    assert out.getvalue() == "".join(f"algo-1  | {line}\n" for line in lines).encode()


def test_a_bar_stays_on_the_last_row_of_a_terminal() -> None:
    out = io.BytesIO()
    printer = LogPrinter(out, ("algo-1", "algo-2"), live=True)
    printer(LogChunk(host="algo-1", data=b"10%\r20%"))
    printer(LogChunk(host="algo-2", data=b"line\n"))
    printer(LogChunk(host="algo-1", data=b"\r30%\n"))
    printer.close()
    shown = out.getvalue()
    assert b"algo-1 | 20%" in shown
    # The row of the bar is cleared before the other host's line, which starts at the left.
    assert b"\r\x1b[Kalgo-2 | line\n" in shown
    # A carriage return would bring the bar over its prefix.
    assert shown.endswith(b"algo-1 | 30%\n")


def test_losing_the_reader_is_not_an_error() -> None:
    class Gone(io.BytesIO):
        def write(self, data: object) -> int:
            raise BrokenPipeError

    printer = LogPrinter(Gone(), ("algo-1",), live=False)
    printer(LogChunk(host="algo-1", data=b"x\n"))
    printer(LogChunk(host="algo-1", data=b"y\n"))
    assert isinstance(printer.lost, BrokenPipeError)


def test_a_cut_line_does_not_run_into_the_next_attempt(tmp_path: Path) -> None:
    out = io.BytesIO()
    printer = LogPrinter(out, ("algo-1",), live=False)
    for attempt, text in enumerate((b"loss = 1", b"2 steps\n")):
        log = tmp_path / str(attempt)
        log.write_bytes(text)
        LogPump({"algo-1": log}, printer).finish()
    assert out.getvalue() == b"loss = 1\n2 steps\n"


@pytest.mark.parametrize("ending", ["", "no newline at the end \N{SNOWMAN}"])
def test_nothing_is_lost_of_a_writer_that_floods_and_ends(tmp_path: Path, ending: str) -> None:
    log = tmp_path / "log"
    code = f"import sys\nfor i in range(200_000): print('line', i)\nsys.stdout.write({ending!r})"
    seen: list[bytes] = []

    def observe(event: Event) -> None:
        assert isinstance(event, LogChunk)
        seen.append(event.data)

    with log.open("wb") as out, LogPump({"algo-1": log}, observe):
        subprocess.run([sys.executable, "-X", "utf8", "-c", code], stdout=out, check=True)
    expected = "".join(f"line {i}\n" for i in range(200_000)) + (ending and ending + "\n")
    assert b"".join(seen) == expected.encode()
