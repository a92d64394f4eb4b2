"""Logs in pieces: the bytes and their offsets stay, whoever reads, and wherever a rotation is cut short."""

from __future__ import annotations

import errno
import gzip
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.backends import syscalls
from hotfire.runtime.events import Event, LogChunk, Note, Observer, ignore
from hotfire.runtime.observe import log_pieces
from hotfire.runtime.observe.log_pieces import Rotation, extent, read, tail
from hotfire.runtime.observe.logs import LogPump

SIZE = 5_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "log"


class Heard(list[Event]):
    """An observer: everything that it was told."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    @property
    def bytes(self) -> bytes:
        return b"".join(one.data for one in self if isinstance(one, LogChunk))


def rotation(log: Path, observer: Observer = ignore, size: int = SIZE) -> Rotation:
    return Rotation(log, log.parent / "scratch", observer, size)


def pieces(log: Path) -> list[Path]:
    return sorted(log.parent.glob("log.*.gz"))


def lines(count: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(count))


def test_a_short_log_stays_a_plain_file(log: Path) -> None:
    size = log_pieces.PLAIN * SIZE - 1
    log.write_bytes(b"x" * size)
    one = rotation(log)
    one.read_to(size)
    one.finish(size)
    assert log.read_bytes() == b"x" * size and not pieces(log)


@pytest.mark.parametrize("ending", [b"", b"not a whole line"])
def test_all_bytes_keep_their_offsets(log: Path, ending: bytes) -> None:
    whole = lines(6_000) + ending
    log.write_bytes(whole)
    one = rotation(log)
    one.read_to(len(whole) // 2)
    assert log.stat().st_size == len(whole), "what a host appends still gets the next offset"
    assert not any(log.read_bytes()[:SIZE]), "what is in a piece is not in the file any more"
    for finished in (False, True):
        assert extent(log)[0] == len(whole)
        assert read(log, 0, len(whole) + 9) == whole
        assert tail(log, 7_000) == whole[-7_000:]
        for begin in range(0, len(whole), 999):
            assert read(log, begin, begin + 2 * SIZE) == whole[begin : begin + 2 * SIZE]
        if not finished:
            one.finish(len(whole))
    assert not log.exists()
    texts = [gzip.decompress(path.read_bytes()) for path in pieces(log)]
    assert b"".join(texts) == whole
    assert all(text.endswith(b"\n") for text in texts[:-1]) and max(map(len, texts)) <= SIZE


def test_a_line_longer_than_a_piece(log: Path) -> None:
    whole = b"x" * (5 * SIZE) + b"\ny\n"
    log.write_bytes(whole)
    one = rotation(log)
    one.read_to(len(whole))
    one.finish(len(whole))
    assert pieces(log) and read(log, 0, 6 * SIZE) == whole


def test_a_reader_that_follows_goes_from_piece_to_piece(log: Path) -> None:
    """A host that writes, its supervisor that closes pieces, and somebody else who follows."""
    code = "for i in range(300_000): print('line', i)"
    kept, follower = Heard(), Heard()
    with ExitStack() as stack:
        stack.enter_context(LogPump({"algo-1": log}, follower))
        closing = {"algo-1": rotation(log, size=100_000)}
        stack.enter_context(LogPump({"algo-1": log}, kept, rotations=closing))
        with log.open("ab") as out:
            subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert kept.bytes == follower.bytes == lines(300_000)
    assert not log.exists() and len(pieces(log)) > 20


def test_the_disk_gets_back_what_is_in_a_piece(log: Path) -> None:
    one = rotation(log, size=200_000)
    for _ in range(20):
        with log.open("ab") as out:
            out.write(lines(100_000))
        one.read_to(log.stat().st_size)
        assert log.stat().st_blocks * 512 <= 300_000


def test_a_log_that_somebody_still_writes_is_not_removed(log: Path) -> None:
    with log.open("ab") as out:
        out.write(lines(4_000))
        out.flush()
        one = rotation(log)
        one.read_to(out.tell())
        one.finish(out.tell())
        out.write(b"late\n")
    assert pieces(log) and read(log, 0, 1 << 20) == lines(4_000) + b"late\n"


KILLED = """
import os, signal, sys
from pathlib import Path
from hotfire.runtime.events import ignore
from hotfire.runtime.observe import log_pieces

folder, whole = Path(sys.argv[1]), b"".join(b"line %d\\n" % number for number in range(2_000))
log_pieces.PLAIN = 2  # fewer pieces have fewer moments to be killed in

def rotate(log, lines):
    def trace(frame, kind, argument):
        nonlocal lines
        if frame.f_code.co_filename != log_pieces.__file__:
            return None
        lines -= kind == "line"
        if not lines:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    one = log_pieces.Rotation(log, log.parent / "scratch", ignore, 6_000)
    one.read_to(len(whole))
    one.finish(len(whole))

lines, code = 0, -1
while code:
    lines += 1
    log = folder / str(lines) / "log"
    (log.parent / "scratch").mkdir(parents=True)
    log.write_bytes(whole)
    if not (child := os.fork()):
        rotate(log, lines)
        os._exit(0)
    code = os.waitpid(child, 0)[1]
    assert log_pieces.extent(log)[0] == len(whole), lines
    for begin in range(0, len(whole), 1_000):
        assert log_pieces.read(log, begin, begin + 7_000) == whole[begin : begin + 7_000], lines
print(lines)
"""


def test_a_supervisor_killed_at_any_line_of_a_rotation_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    argv = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_a_disk_that_refuses_costs_pieces_and_no_line(
    log: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, "no")

    punch = syscalls.punch
    monkeypatch.setattr(syscalls, "punch", refuse)
    whole, heard = lines(4_000), Heard()
    log.write_bytes(whole)
    one = rotation(log, heard)
    one.read_to(log_pieces.PLAIN * SIZE)
    assert log.read_bytes() == whole
    monkeypatch.setattr(syscalls, "punch", punch)
    one.read_to(len(whole))
    one.finish(len(whole))
    told = [event for event in heard if isinstance(event, Note)]
    assert (len(told), bool(pieces(log))) == (
        (1, False) if number == errno.EOPNOTSUPP else (0, True)
    )
    assert read(log, 0, len(whole)) == whole
    assert not list((log.parent / "scratch").iterdir())


def test_a_job_of_the_same_name_has_its_own_pieces(log: Path) -> None:
    for text in (b"one\n", b"two\n"):
        for path in pieces(log):
            path.unlink()
        log.write_bytes(text * SIZE)
        one = rotation(log)
        one.read_to(4 * SIZE)
        one.finish(4 * SIZE)
        assert read(log, 0, 8) == text * 2
        assert log_pieces.tail(log, 4) == text
