"""The hosts of an attempt from their start to their end: who ends them when, and with which signal."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hotfire.runtime import channels
from hotfire.runtime.backend import Container
from hotfire.runtime.control import Control
from hotfire.runtime.events import Note
from hotfire.runtime.journal import Journal
from hotfire.runtime.outcome import HostExit, StopCause
from hotfire.runtime.status import SecondaryStatus


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds that are left to an attempt, and what SIGTERM is followed by."""

    max_runtime: float
    max_wait: float
    grace: float


class Watch:
    """Waits for the hosts, and ends them when one fails, when somebody asks, or when the time is over."""

    def __init__(
        self, control: Control, limits: Limits, journal: Journal, feeds: channels.Feeds
    ) -> None:
        self._control = control
        self._feeds = feeds
        self._limits = limits
        self._journal = journal
        self._began = time.monotonic()
        self.cause: StopCause | None = None
        self.interrupted = False
        self.abrupt = False
        """The interruption came without notice: the hosts are lost with what they had not uploaded."""

    def until_ended(self, containers: Sequence[Container]) -> tuple[HostExit, ...]:
        """The exits of all hosts in the order in which they ended."""
        ended: queue.SimpleQueue[tuple[Container, int]] = queue.SimpleQueue()
        for container in containers:
            threading.Thread(target=_wait_for, args=(container, ended), daemon=True).start()
        exits: list[HostExit] = []
        running = list(containers)
        kill_at: float | None = None
        while running:
            with contextlib.suppress(queue.Empty):
                container, code = ended.get(timeout=0.1)
                running.remove(container)
                told = kill_at is not None
                exits.append(
                    HostExit(host=container.host, exit_code=code, order=len(exits), told=told)
                )
            if not running:
                break
            if kill_at is None and (ending := self._why_end(exits)) is not None:
                why, grace = ending
                kill_at = time.monotonic() + grace
                if grace > 0:
                    self._tell(f"{why}; SIGTERM to {_names(running)}, SIGKILL after {grace:g} s")
                    for container in running:
                        container.signal(signal.SIGTERM)
            if kill_at is not None and (time.monotonic() >= kill_at or self._control.hurry):
                kill_at = float("inf")
                self._tell(f"SIGKILL to {_names(running)}")
                for container in running:
                    container.kill()
        return tuple(exits)

    def _tell(self, text: str) -> None:
        self._journal(Note(text=text))

    def _why_end(self, exits: Sequence[HostExit]) -> tuple[str, float] | None:
        """Why the hosts that still run must go, and after how many seconds at the latest."""
        grace = self._limits.grace
        spent = time.monotonic() - self._began
        if self._feeds.failure is not None:
            return self._feeds.failure.what, grace
        if failed := [end for end in exits if end.exit_code != 0]:
            return f"{failed[0].host} exited with code {failed[0].exit_code}", grace
        if self._control.stop_asked:
            self._stopping(StopCause.REQUEST)
            return "the job was asked to stop", grace
        if spent > self._limits.max_runtime:
            self._stopping(StopCause.MAX_RUNTIME)
            return "MaxRuntimeInSeconds is over", grace
        if spent > self._limits.max_wait:
            self._stopping(StopCause.MAX_WAIT_TIME)
            return "MaxWaitTimeInSeconds is over", grace
        if (interruption := self._control.take_interruption(spent)) is not None:
            self.interrupted = True
            self.abrupt = interruption.notice <= 0
            return "spot interruption", min(interruption.notice, grace)
        return None

    def _stopping(self, cause: StopCause) -> None:
        self.cause = cause
        self._journal.move(SecondaryStatus.STOPPING, "Stopping the training job")


def _wait_for(container: Container, ended: queue.SimpleQueue[tuple[Container, int]]) -> None:
    code = None
    while code is None:
        code = container.wait()
    ended.put((container, code))


def _names(containers: Sequence[Container]) -> str:
    return ", ".join(container.host for container in containers)
