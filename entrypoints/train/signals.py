"""The container's signals, held until somebody can deal with them. Imports nothing that takes time."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""They end the job: the workers get them once, then have their grace period."""

PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""They mean something to the script only."""


class Stopped(BaseException):
    """A stop came before any worker ran. Not an Exception, so that no library takes it for an error of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """What has arrived and was not dealt with yet. Make it with :func:`install`."""

    def __init__(self, wakeup: int) -> None:
        self._wakeup = wakeup
        self._arrived: list[int] = []
        self._raising = False

    def arrive(self, number: int, _frame: FrameType | None = None) -> None:
        self._arrived.append(number)
        if self._raising and number in STOPS:
            self._raise()

    def take(self) -> list[int]:
        """Everything that arrived since the last call, oldest first."""
        taken = []
        # One by one: a handler may append in between.
        while self._arrived:
            taken.append(self._arrived.pop(0))
        return taken

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A stop raises :class:`Stopped` inside, at once where it has come before."""
        self._raising = True
        try:
            if any(number in STOPS for number in self._arrived):
                self._raise()
            yield
        finally:
            self._raising = False

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``, or as soon as a signal (a child's end too) arrives."""
        if select.select([self._wakeup], [], [], max(seconds, 0.0))[0]:
            os.read(self._wakeup, 4096)

    def pause(self, seconds: float) -> None:
        """Return after ``seconds``, whatever else arrives; a stop still raises where it is to."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.sleep(left)

    def _raise(self) -> None:
        self._raising = False
        raise Stopped(next(number for number in self._arrived if number in STOPS))


def install() -> Signals:
    """Take over every signal that means something to a container."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    if min(reader, writer) <= 2:
        # Started with a standard stream closed: the next files opened would be taken for it.
        os.close(reader)
        os.close(writer)
        _open_standard_streams()
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signals = Signals(reader)
    for number in (*STOPS, *PASSED_ON):
        signal.signal(number, signals.arrive)
    # Whoever started us may have blocked them.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*STOPS, *PASSED_ON, signal.SIGCHLD})
    # The handler does nothing, but having one is what writes to the wakeup descriptor.
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return signals


def _open_standard_streams() -> None:
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
