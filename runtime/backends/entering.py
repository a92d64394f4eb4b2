"""A program of the user's inside a live host."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from hotfire.runtime.backends.explained import explained
from hotfire.runtime.backends.spawn import Launcher
from hotfire.runtime.backends.steps import SetUpError
from hotfire.runtime.errors import DataError


def enter(container_pid: int, argv: Sequence[str], env: Mapping[str, str], cwd: str = "/") -> int:
    """Run a program on this terminal inside a live host, as ``hotfire shell`` does; returns its exit code.

    ``container_pid`` is the id of a host of this user's (its first process on this machine), of whatever supervisor.

    Raises:
        DataError: the host is gone.
        PlatformError: it cannot be entered.
    """
    plan = {
        "pid": container_pid,
        "argv": [os.fsencode(part) for part in argv],
        "env": {os.fsencode(name): os.fsencode(value) for name, value in env.items()},
        "cwd": os.fsencode(cwd),
    }
    quiet = {}
    try:
        for number in (signal.SIGINT, signal.SIGQUIT):  # the terminal's, meant for the program
            with contextlib.suppress(ValueError):  # not the main thread: then they do not come here
                quiet[number] = signal.signal(number, signal.SIG_IGN)
        with Launcher(terminal=True) as launcher:
            answer = launcher.order("enter", plan).receive()
    except EOFError:
        return 128 + signal.SIGKILL
    except SetUpError as error:
        if error.what == "find the host":
            raise DataError("the host is not running.", do="See `hotfire ps`.") from error
        raise explained(error) from error
    finally:
        for number, handler in quiet.items():
            signal.signal(number, handler)
    assert answer is not None
    code = os.waitstatus_to_exitcode(answer["status"])
    return code if code >= 0 else 128 - code
