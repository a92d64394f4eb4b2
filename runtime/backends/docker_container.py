"""One started host of the Docker backend."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from hotfire.containers.engine import Engine
from hotfire.containers.output import Output
from hotfire.containers.trouble import EngineGone
from hotfire.containers.values import State
from hotfire.runtime.backend import ContainerSpec
from hotfire.runtime.backends import processes
from hotfire.runtime.errors import HotfireError
from hotfire.runtime.events import Note, Observer

ENGINE_PATIENCE = 120.0
"""Seconds in which an engine that went away may come back before its containers count as killed."""
_KILLED = 128 + signal.SIGKILL
_DRAIN = 10.0


class DockerContainer:
    """See :class:`hotfire.runtime.backend.Container`. Every method may be called from any thread."""

    max_rss_bytes: int | None = None
    """The engine does not tell."""

    def __init__(
        self,
        engine: Engine,
        spec: ContainerSpec,
        container: str,
        *,
        undo: ExitStack,
        observer: Observer,
    ) -> None:
        self.host = spec.host
        self._engine = engine
        self._spec = spec
        self._container = container
        self._undo = undo
        self._observer = observer
        self._pid = 0
        self._code: int | None = None
        self._ended = threading.Event()
        self._watch: threading.Thread | None = None

    @property
    def id(self) -> str:
        return self._container

    def begin(self, output: Output, pid: int) -> None:
        """It runs: keep its output and wait for its end."""
        self._pid = pid
        reader = self._read(output)
        self._watch = threading.Thread(
            target=self._wait_for_end, args=(reader,), name="hotfire-container", daemon=True
        )
        self._watch.start()

    def on_removal(self, undo: Callable[[], None]) -> None:
        """To be called first when the container is removed."""
        self._undo.callback(undo)

    def never_ran(self, code: int, text: str) -> None:
        """The engine could not run its program, which ends the host as it ends a command in a shell."""
        self._write(text.encode() + b"\n")
        self._explain(None, code)
        self._end(code)

    def _read(self, output: Output) -> threading.Thread:
        def copy() -> None:
            log = os.open(self._spec.dir.log, _APPEND, 0o644)
            try:
                for data in output:
                    _write_all(log, data)
            except Exception as error:  # noqa: BLE001 - whatever the connection breaks with
                if not self._ended.is_set():
                    text = f"{self.host}: its output was cut off ({type(error).__name__}: {error})"
                    self._observer(Note(text=text, warning=True))
            finally:
                os.close(log)
                output.finish()

        thread = threading.Thread(target=copy, name="hotfire-output", daemon=True)
        thread.start()
        return thread

    def _write(self, data: bytes) -> None:
        log = os.open(self._spec.dir.log, _APPEND, 0o644)
        try:
            _write_all(log, data)
        finally:
            os.close(log)

    def _wait_for_end(self, reader: threading.Thread) -> None:
        try:
            code = self._engine.wait(self._container)
            reader.join(_DRAIN)
        except HotfireError as error:
            code = self._after(error)
        with suppress(HotfireError):
            self._explain(self._engine.state(self._container), code)
        self._end(code)

    def _after(self, error: HotfireError) -> int:
        """The engine went away while the container ran: wait for it, and ask how the container ended."""
        text = f"{self.host}: {error.what}; waiting up to {ENGINE_PATIENCE:.0f} s for it"
        self._observer(Note(text=text, warning=True))
        end = time.monotonic() + ENGINE_PATIENCE
        while time.monotonic() < end:
            if not self._engine.answers():
                time.sleep(0.5)
                continue
            try:
                state = self._engine.state(self._container)
                if state is None:
                    return _KILLED
                if state.code is not None:
                    return state.code
                reader = self._read(self._engine.attach(self._container))
                code = self._engine.wait(self._container)
                reader.join(_DRAIN)
                return code
            except EngineGone:
                time.sleep(0.5)
            except HotfireError:
                break
        return _KILLED

    def _explain(self, state: State | None, code: int) -> None:
        if state is not None and state.out_of_memory:
            limit = self._spec.resources.memory_bytes
            of = f" of {limit / 2**30:.1f} GiB" if limit else ""
            text = (
                f"{self.host}: the kernel killed a process in it for lack of memory (its limit{of})"
            )
            self._observer(Note(text=text, warning=True))
        if code in (126, 127) and self._spec.entrypoint is None:
            text = (
                f"{self.host}: exit code {code}: the image {self._spec.image} needs an exec-form ENTRYPOINT, "
                "or an executable called train on its PATH (contract 1.1)"
            )
            self._observer(Note(text=text, warning=True))

    def _end(self, code: int) -> None:
        self._code = code
        self._ended.set()

    @property
    def pid(self) -> int:
        return 0 if self._ended.is_set() else self._pid

    def pids(self) -> list[int]:
        return [pid, *processes.descendants(pid)] if (pid := self.pid) else []

    def poll(self) -> int | None:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        self._ended.wait(timeout)
        return self._code

    def signal(self, number: int) -> None:
        if not self._ended.is_set():
            with suppress(EngineGone):
                self._engine.signal(self._container, number)

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
        try:
            self._undo.close()
        except EngineGone as error:
            text = f"{self.host} could not be removed: {error.what}; hotfire prune removes it later"
            self._observer(Note(text=text, warning=True))
            self._end(_KILLED)
        if self._watch is not None:
            self._watch.join(_DRAIN)


_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
