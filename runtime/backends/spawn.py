"""Start :mod:`hotfire.runtime.backends.launcher` as a process of its own, and talk to it.

Its interpreter takes as long to start as hotfire's own imports. Whoever knows early that it will be needed calls
:func:`warm_up`, and the first host finds it ready.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hotfire.runtime.backends.steps import SetUpError
from hotfire.runtime.errors import PlatformError

# The launcher's modules are found by this folder alone: importing the installed packages above it would take longer
# than starting a host, and an editable installation needs `site`, which the bare interpreter leaves out.
_BOOT = """import sys
for name in ("hotfire", "hotfire.runtime", "hotfire.runtime.backends"):
    sys.modules[name] = package = type(sys)(name)
    package.__path__ = [sys.argv[1]]
from hotfire.runtime.backends.launcher import main
main(*sys.argv[2:])"""


class Launcher:
    """A running launcher. Closing it, or the death of this process, ends whatever it has started."""

    def __init__(self, *, terminal: bool = False) -> None:
        """It waits for an order. ``terminal``: it shares ours, and our standard streams; else it has none."""
        self.sockets: list[socket.socket] = []
        """Listening sockets that the launcher has handed over; whoever takes them out closes them."""
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        streams = None if terminal else subprocess.DEVNULL
        try:
            self.process = subprocess.Popen(
                [_python(), "-I", "-S", "-c", _BOOT, _HERE, str(theirs.fileno())],
                stdin=streams,
                stdout=streams,
                stderr=streams,
                pass_fds=(theirs.fileno(),),
                start_new_session=not terminal,
                cwd="/",
            )
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()

    def order(
        self,
        errand: str,
        plan: Mapping[str, Any],
        *,
        keep: Sequence[int] = (),
        output: int | None = None,
    ) -> Self:
        """Have it do one errand.

        Args:
            keep: descriptors that the plan names, and that the launcher gets.
            output: where what it starts writes to from now on.
        """
        sent = [*keep, *([] if output is None else [output])]
        # A plan may be longer than a message.
        plan_fd = os.memfd_create("hotfire-plan")
        try:
            with open(plan_fd, "wb", closefd=False) as file:
                marshal.dump([errand, dict(plan), list(keep)], file)
            os.lseek(plan_fd, 0, os.SEEK_SET)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # receive() tells
                socket.send_fds(self.channel, [b"order"], [plan_fd, *sent])
        finally:
            os.close(plan_fd)
        return self

    def wait_for_message(self, timeout: float | None = None) -> bool:
        """Whether, within ``timeout`` seconds (None: for ever), there is something to receive."""
        try:
            poll = select.poll()
            poll.register(self.channel, select.POLLIN)
        except ValueError:  # closed by another thread, which therefore knows the end
            return True
        return bool(poll.poll(None if timeout is None else max(0, timeout) * 1000))

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The next message; None when ``timeout`` seconds have passed without one.

        Raises:
            SetUpError: a step was refused.
            EOFError: the launcher has ended.
        """
        if not self.wait_for_message(timeout):
            return None
        try:
            data, fds, _, _ = socket.recv_fds(self.channel, 65536, 1)
        except ConnectionResetError:
            data, fds = b"", []
        if not data:
            raise EOFError
        if fds:
            self.sockets += [socket.socket(fileno=fd) for fd in fds]
            return self.receive(timeout)
        message: dict[str, Any] = marshal.loads(data)
        if error := message.get("error"):
            raise SetUpError(**error)
        return message

    def send(self, order: bytes) -> None:
        """Give an order; one that has ended takes none."""
        try:
            self.channel.send(order, socket.MSG_NOSIGNAL)
        except OSError:
            return

    def close(self) -> None:
        """Give the order to end, and wait until it is carried out."""
        self.channel.close()
        while self.sockets:
            self.sockets.pop().close()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_ready: list[Launcher] = []


def warm_up() -> None:
    """Start a launcher before it is known what for. Where it is never needed, it ends with this process."""
    _ready.append(Launcher())


def take() -> Launcher:
    """A launcher that waits for an order: the one that is warm and still lives, or another."""
    while _ready:
        launcher = _ready.pop()
        if launcher.process.poll() is None:
            return launcher
        launcher.close()
    return Launcher()


def ask(errand: str, plan: Mapping[str, Any], timeout: float = 10) -> dict[str, Any]:
    """Have an errand done that leaves the launcher as it was, and return what it says.

    Raises:
        SetUpError: a step was refused.
        PlatformError: it ended, or took ``timeout`` seconds, without a word.
    """
    warm = bool(_ready)
    launcher = take()
    answer = None
    try:
        with contextlib.suppress(EOFError):
            answer = launcher.order(errand, plan).receive(timeout)
        if answer is None:
            launcher.process.kill()
            raise PlatformError(
                f"the launcher gave no answer to {errand!r} within {timeout:g} s.",
                do=f"Try: {_python()} -I -S -c 'import ctypes'",
            )
    finally:
        if warm and answer is not None:
            _ready.append(launcher)
        else:
            launcher.close()
    return answer


_HERE = str(Path(__file__).parent)


def _python() -> str:
    if not sys.executable:
        raise PlatformError(
            "this Python does not know its own executable, which starts the hosts.",
            do="Start hotfire from a normal interpreter.",
        )
    return sys.executable


def remaining(deadline: float | None) -> float | None:
    """Seconds until ``deadline`` on the monotonic clock."""
    return None if deadline is None else deadline - time.monotonic()
