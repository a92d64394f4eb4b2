"""One started host of the process backend."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from hotfire.runtime.backends import processes
from hotfire.runtime.backends.copying import remove_tree
from hotfire.runtime.backends.placing import Placing
from hotfire.runtime.backends.spawn import Launcher, remaining


class ProcessContainer:
    """See :class:`hotfire.runtime.backend.Container`. Every method may be called from any thread.

    ``max_rss_bytes``: after the end, the largest resident set that any one process of the host had.
    """

    def __init__(
        self, host: str, pid: int, launcher: Launcher, scratch: Path, placing: Placing | None
    ) -> None:
        self.host = host
        self.max_rss_bytes: int | None = None
        self._pid = pid
        self._launcher = launcher
        self._scratch = scratch
        self._placing = placing
        self._code: int | None = None
        self._lock = threading.Lock()
        self._pid_namespace = _pid_namespace(pid) if placing is None else ""

    @property
    def id(self) -> str:
        """The process id of the host's first process on this machine: what :func:`entering.enter` takes."""
        return str(self._pid)

    @property
    def pid(self) -> int:
        return self._pid if self._code is None else 0

    def pids(self) -> list[int]:
        if self._code is not None:
            return []
        parents = processes.parents()
        root = self._pid if self._pid_namespace else self._launcher.process.pid
        found = ([root] if self._pid_namespace else []) + processes.descendants(root, parents)
        if self._pid_namespace:  # whoever entered the host from outside descends from somebody else
            others = parents.keys() - set(found)
            found += sorted(pid for pid in others if _pid_namespace(pid) == self._pid_namespace)
        return found

    def poll(self) -> int | None:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._code is None:
            waited = self._launcher.wait_for_message(remaining(deadline))
            with (
                self._lock
            ):  # several threads may wait: the one that reads the message also notes it
                if self._code is None and waited:
                    self._take_message()
            if not waited:
                break
        return self._code

    def _take_message(self) -> None:
        try:
            message = self._launcher.receive(0)
        except EOFError:  # somebody killed the launcher, and with it the host
            message = {"status": int(signal.SIGKILL), "max_rss": None}
        if message is not None:
            self._launcher.process.wait()
            code = os.waitstatus_to_exitcode(message["status"])
            self.max_rss_bytes = message["max_rss"]
            self._code = code if code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        if self._code is None:
            self._launcher.send(bytes([number]))

    def stop(self, grace: float) -> int:
        self.signal(signal.SIGTERM)
        code = self.wait(grace)
        if code is None:
            self.kill()
            code = self.wait()
        assert code is not None
        return code

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def remove(self) -> None:
        self.kill()
        self._launcher.close()
        if self._placing is not None:
            self._placing.undo()
            self._placing = None
        remove_tree(self._scratch)


def _pid_namespace(pid: int) -> str:
    """The name of a process's pid namespace, empty where that is not ours to know."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115 (hundreds of them at a time)
    except OSError:
        return ""
