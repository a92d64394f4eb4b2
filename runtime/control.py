"""How others reach a running job: signals to its supervisor, and files in its control directory.

A file and not a socket, because a command must work from any terminal, at any moment, and leave no half-open state: the
supervisor looks at the directory a few times a second while hosts run.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hotfire.runtime.errors import ValidationError
from hotfire.runtime.events import LogChunk

_T = TypeVar("_T")
STOP = "stop"
INTERRUPT = "interrupt"
SPOT_NOTICE_SECONDS = 120.0
"""Between SIGTERM and SIGKILL of an interruption; undocumented, the platform's own grace is assumed (contract 5.8)."""
_NOTICE_SECONDS = 0.2


class StopAsked(BaseException):
    """The job was asked to stop while no host was running: there is nothing to wait for.

    Like KeyboardInterrupt it is no Exception: boto3 takes whatever is one for a broken connection, and tries again.
    """


@dataclass(frozen=True)
class Interruption:
    """A spot interruption: ``notice`` seconds after SIGTERM the hosts are gone; 0 takes them at once."""

    notice: float = SPOT_NOTICE_SECONDS

    def request(self, control: Path) -> None:
        """Ask the supervisor whose control directory this is."""
        aside = control / f".{INTERRUPT}"
        aside.write_text(json.dumps({"notice": self.notice}), encoding="utf-8")
        aside.rename(control / INTERRUPT)


@dataclass(frozen=True)
class Trigger:
    """When to rehearse an interruption: ``text`` appears in a line of the log, or ``seconds`` of training are over."""

    text: bytes = b""
    seconds: float = 0.0

    @classmethod
    def parse(cls, words: str) -> Trigger:
        """``90s``, ``2m``, or any text to wait for, such as ``step 40``.

        Raises:
            ValidationError: nothing to wait for.
        """
        number, unit = words[:-1], words[-1:]
        if unit in ("s", "m") and number.replace(".", "", 1).isdecimal():
            return cls(seconds=float(number) * {"s": 1, "m": 60}[unit])
        if not words.strip():
            raise ValidationError(
                "--interrupt-after is empty.",
                do="Give a time (90s) or a text of the log (step 40).",
            )
        return cls(text=words.encode())


class Control:
    """What a job was asked to do. One per supervisor; safe to ask from signal handlers and threads."""

    def __init__(self, directory: Path, trigger: Trigger | None = None) -> None:
        self._directory = directory
        self._stop = threading.Event()
        self.asks = 0
        """How often :meth:`stop` was called."""
        self._raises = False
        self._trigger = trigger
        self._tail: dict[str, bytes] = {}
        self._seen = threading.Event()

    def stop(self) -> None:
        """Stop in good order; asked again, without waiting for the hosts.

        Raises:
            StopAsked: called, as by a signal, inside :meth:`interruptible`.
        """
        self.asks += 1
        self._stop.set()
        if self._raises:
            raise StopAsked

    @property
    def stop_asked(self) -> bool:
        return self._stop.is_set() or (self._directory / STOP).exists()

    @property
    def hurry(self) -> bool:
        return self.asks > 1

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, asking to stop raises :class:`StopAsked` at once instead of waiting to be noticed.

        In the main thread alone, and while it takes signals.
        """
        if self.stop_asked:
            raise StopAsked
        self._raises = True
        over = threading.Event()
        if threading.current_thread() is threading.main_thread():  # elsewhere signals are not ours
            threading.Thread(target=self._wake, args=(over,), daemon=True).start()
        try:
            yield
        finally:
            self._raises = False
            over.set()

    def _wake(self, over: threading.Event) -> None:
        """Turn a request by file into a signal: the main thread may wait for an answer that never comes."""
        while not over.wait(_NOTICE_SECONDS):
            asked = not self._stop.is_set() and (self._directory / STOP).exists()
            if asked and callable(signal.getsignal(signal.SIGTERM)):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
                return

    def wait(self, seconds: float) -> None:
        """Let time pass between attempts.

        Raises:
            StopAsked: somebody does not want to wait.
        """
        end = time.monotonic() + seconds
        with self.interruptible():
            while (left := end - time.monotonic()) > 0:
                if self.stop_asked:
                    raise StopAsked
                time.sleep(min(0.1, left))

    def unless_given_up(self, work: Callable[[], _T], warn: Callable[[], None]) -> _T:
        """What ``work`` returns, from a thread of its own; ``warn`` when a stop is asked for meanwhile.

        Raises:
            StopAsked: asked for twice: nobody wants to wait. The thread may go on with a request that is not answered.
        """
        from concurrent.futures import wait

        from hotfire.runtime.daemon_pool import DaemonPool

        before, warned = self.asks, False
        pool = DaemonPool(1, "hotfire-upload")
        try:
            answer = pool.submit(work)
            # Not `result(timeout)`: the work's own TimeoutError would look like its wait's.
            while not wait([answer], timeout=0.1).done:
                if self.asks > before and not warned:
                    warned = True
                    warn()
                if self.asks > before + 1:
                    raise StopAsked
            return answer.result()
        finally:
            pool.close()

    def look(self, chunk: LogChunk) -> None:
        """See whether the text of the trigger has been printed; lines may be cut anywhere."""
        if self._trigger is None or not self._trigger.text or self._seen.is_set():
            return
        text = self._tail.get(chunk.host, b"") + chunk.data
        if self._trigger.text in text:
            self._seen.set()
        self._tail[chunk.host] = text[-len(self._trigger.text) :]

    def take_interruption(self, training_seconds: float) -> Interruption | None:
        """The interruption that is due now, once: asked for by a file, or by the trigger."""
        path = self._directory / INTERRUPT
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            pass
        else:
            path.unlink()
            return Interruption(float(raw["notice"]))
        trigger = self._trigger
        if trigger is None:
            return None
        if self._seen.is_set() or 0 < trigger.seconds <= training_seconds:
            self._trigger = None
            return Interruption()
        return None
