"""Child processes of a program that may be PID 1: every one is waited for, those it inherits too."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from hotfire.entrypoints.train.signals import Signals

_PR_SET_CHILD_SUBREAPER = 36
_POLL = 0.05


class Children:
    """Starts and waits for processes.

    Nothing else in this program may wait for a process: orphans become its children, and are collected here with
    ``waitpid(-1)``.
    """

    def __init__(self, signals: Signals) -> None:
        self.signals = signals
        self._running: set[int] = set()
        self._ended: dict[int, int] = {}

    def adopt_orphans(self) -> None:
        """Become the parent of processes whose own parent dies, as PID 1 is anyway (Linux; elsewhere nothing)."""
        if os.getpid() != 1:
            import ctypes

            with suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
    ) -> int:
        """Start ``argv`` in a session of its own, with our standard streams. Returns its process id.

        A session, because Ctrl-C at a terminal reaches the whole foreground group and we pass it on ourselves.

        Raises:
            OSError: the program cannot be executed.
        """
        process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdout=stdout, stderr=stderr, start_new_session=True
        )
        # Popen must not wait for it: reap() may have done so before.
        process.returncode = 0
        self._running.add(process.pid)
        return process.pid

    def poll(self, pid: int) -> int | None:
        """The exit code of a process that :meth:`spawn` started, 128+n for signal n; None while it runs."""
        self.reap()
        return self._ended.get(pid)

    def wait(self, pid: int, timeout: float | None = None) -> int | None:
        """Like :meth:`poll`, after waiting up to ``timeout`` seconds (None: for ever)."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll(pid)) is None:
            left = 60.0 if end is None else end - time.monotonic()
            if left <= 0:
                return None
            self.signals.sleep(left)
        return code

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
        timeout: float | None = None,
    ) -> int | None:
        """Start ``argv`` and wait for its end. Killed after ``timeout`` seconds, and the answer is None.

        Raises:
            OSError: the program cannot be executed.
        """
        pid = self.spawn(argv, env=env, cwd=cwd, stdout=stdout, stderr=stderr)
        try:
            code = self.wait(pid, timeout)
        except BaseException:
            self.end(pid)
            raise
        if code is None:
            self.end(pid)
        return code

    def capture(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        errors_only: bool = False,
        timeout: float | None = None,
    ) -> tuple[int | None, str]:
        """Like :meth:`run`, with what it wrote: to standard error alone, else to standard output alone."""
        # In memory: neither a full disk nor a full pipe can stop it.
        with os.fdopen(os.memfd_create("output"), "w+b") as out:
            taken: dict[str, IO[bytes]] = {"stderr" if errors_only else "stdout": out}
            code = self.run(argv, env=env, cwd=cwd, timeout=timeout, **taken)
            out.seek(0)
            return code, out.read().decode(errors="replace")

    def end(self, pid: int, patience: float = 3.0) -> None:
        """SIGTERM to the process's session, ``patience`` seconds, SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.poll(pid) is not None:
                return
            with suppress(ProcessLookupError):
                os.killpg(pid, number)
            self.wait(pid, patience)

    def reap(self) -> bool:
        """Collect every child that has ended. Returns whether any child, ours or inherited, is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid in self._running:
                self._running.discard(pid)
                self._ended[pid] = _exit_code(status)

    def kill_all(self, patience: float = 10.0) -> bool:
        """SIGKILL to everything below us until nothing is left; False if something outlives ``patience`` seconds."""
        end = time.monotonic() + patience
        while self.reap():
            if time.monotonic() > end:
                return False
            self._kill_once()
            self.signals.sleep(_POLL)
        return True

    def _kill_once(self) -> None:
        if os.getpid() == 1:
            with suppress(OSError):
                os.kill(-1, signal.SIGKILL)
            return
        for pid in {*self._running, *descendants(os.getpid())}:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def descendants(root: int) -> list[int]:
    """Process ids of everything below ``root``; empty where /proc shows another PID namespace than ours."""
    children: dict[int, list[int]] = {}
    try:
        if Path("/proc/self").readlink() != Path(str(os.getpid())):
            return []
        numbers = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal()]
    except OSError:
        return []
    for pid in numbers:
        children.setdefault(_parent(pid), []).append(pid)
    found, below = [], [root]
    while below:
        below = [pid for parent in below for pid in children.get(parent, ())]
        found += below
    return found


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    # The command's name stands in parentheses and may hold anything.
    return int(stat.rpartition(b")")[2].split()[1])


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
