"""Noticing that the platform wants the job to end (standard library only).

SageMaker sends SIGTERM and 120 seconds later SIGKILL (contract 5.1); a loop looks at the flag
between steps, saves and ends.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopFlag:
    """Set once a signal has asked for the end."""

    def __init__(self) -> None:
        self.requested = False


@contextmanager
def stop_on_sigterm() -> Iterator[StopFlag]:
    """A flag that SIGTERM sets while the block runs; the earlier handler comes back afterwards.

    Outside the main thread signals cannot be handled, and the flag stays unset.
    """
    flag = StopFlag()

    def request(number: int, frame: FrameType | None) -> None:
        flag.requested = True

    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = signal.signal(signal.SIGTERM, request)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGTERM, before)
