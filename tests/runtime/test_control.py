"""A stop that was asked for by file, while the platform waits for something that may never come."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotfire.runtime.control import STOP, Control, StopAsked


@pytest.fixture
def terms() -> Iterator[list[int]]:
    """SIGTERMs that reach this process."""
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, before)


def test_the_main_thread_is_woken(tmp_path: Path, terms: list[int]) -> None:
    control = Control(tmp_path)
    signal.signal(signal.SIGTERM, lambda *_: control.stop())
    with pytest.raises(StopAsked), control.interruptible():
        (tmp_path / STOP).touch()
        threading.Event().wait(60)
    assert terms == []


def test_a_job_in_another_thread_sends_no_signal_to_the_program_around_it(
    tmp_path: Path, terms: list[int]
) -> None:
    """Whose own handler of SIGTERM would end it."""

    def wait() -> None:
        with Control(tmp_path).interruptible():
            (tmp_path / STOP).touch()
            threading.Event().wait(1)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert terms == []
