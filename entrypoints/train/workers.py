"""Runs the workers to their end: passes stops on to them, gives them time, and knows who failed first."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hotfire.entrypoints.train import elastic
from hotfire.entrypoints.train.children import Children
from hotfire.entrypoints.train.signals import STOPS
from hotfire.entrypoints.train.talk import say

_TICK = 0.1
_AGENT_PATIENCE = 2.0


@dataclass(frozen=True, kw_only=True)
class WorkerExit:
    """How one worker ended. ``error`` is its own account (``hotfire.runtime.xla.worker_record``), if it left one."""

    rank: int
    exit_code: int
    time: float = 0.0
    ended_by_agent: bool = False
    """torchrun ended it, because another worker had failed."""
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of all workers of this host. ``trouble`` is what kept torchrun from doing its work."""

    exits: tuple[WorkerExit, ...]
    trouble: str = ""
    agent_code: int = 0
    stopped_by: int | None = None

    @property
    def first_failure(self) -> WorkerExit | None:
        """The worker that failed first: the others then fail because of it."""
        failed = [end for end in self.exits if end.exit_code != 0]
        return min(failed, key=lambda end: (end.ended_by_agent, end.time, end.rank), default=None)

    @property
    def exit_code(self) -> int:
        """Of the first failed worker, else torchrun's own."""
        if (first := self.first_failure) is not None:
            return first.exit_code
        if self.stopped_by is not None and self.exits:
            return 0
        return self.agent_code


class Crew(Protocol):
    """The processes that the script runs in, behind the one process that we started."""

    pid: int

    def signal(self, number: int) -> None:
        """Give every member ``number``, once; called again and again, since members may still be starting."""

    def stop(self, number: int, deadline: float) -> None:
        """The job is being stopped: :meth:`signal`, and whatever else a stop needs."""

    def lingers(self) -> bool:
        """Whether members still run after the one process has ended."""

    def ended(self, code: int, stopped_by: int | None) -> Ended: ...


class OneProcess:
    """A script, or any program."""

    def __init__(self, pid: int, directory: Path, *, group: bool) -> None:
        self.pid = pid
        self._directory = directory
        self._group = group
        self._told: set[int] = set()

    def signal(self, number: int) -> None:
        """To the script alone, whose data loaders must live on while it saves; to a shell with all it started."""
        if number not in self._told:
            self._told.add(number)
            send = os.killpg if self._group else os.kill
            with suppress(ProcessLookupError):
                send(self.pid, number)

    def stop(self, number: int, deadline: float) -> None:
        self.signal(number)

    def lingers(self) -> bool:
        if not self._group:
            return False
        try:
            os.killpg(self.pid, 0)
        except OSError:
            return False
        return True

    def ended(self, code: int, stopped_by: int | None) -> Ended:
        end = WorkerExit(rank=0, exit_code=code, error=_error(self._directory, 0))
        return Ended(exits=(end,), stopped_by=stopped_by)


class TorchrunCrew:
    """torchrun's agent (:mod:`hotfire.entrypoints.train.elastic`) and its workers."""

    def __init__(self, pid: int, directory: Path) -> None:
        self.pid = pid
        self._directory = directory
        self._told: set[tuple[int, int]] = set()
        self._stopping = False
        self._idle_since: float | None = None

    def signal(self, number: int) -> None:
        for worker in self._report()["workers"].values():
            if worker["exit_code"] is None:
                self._tell(worker["pid"], number)

    def stop(self, number: int, deadline: float) -> None:
        workers = self._report()["workers"]
        if not workers:
            # Still importing torch, or waiting for other hosts: nothing of the user's runs yet.
            self._tell(self.pid, signal.SIGTERM)
            return
        if not self._stopping:
            self._stopping = True
            # Without it the agent gives the others 30 seconds once one has failed: no reason to stop here.
            with suppress(OSError):
                (self._directory / elastic.STOP).write_text(str(deadline))
        self.signal(number)
        if all(worker["exit_code"] is not None for worker in workers.values()):
            # The agent may still wait for other hosts, deaf to signals.
            self._idle_since = self._idle_since or time.monotonic()
            if time.monotonic() - self._idle_since > _AGENT_PATIENCE:
                self._tell(self.pid, signal.SIGKILL)

    def lingers(self) -> bool:
        return False

    def _tell(self, pid: int, number: int) -> None:
        if (pid, number) not in self._told:
            self._told.add((pid, number))
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def ended(self, code: int, stopped_by: int | None) -> Ended:
        report = self._report()
        exits = tuple(
            self._exit(int(rank), worker) for rank, worker in sorted(report["workers"].items())
        )
        trouble = ""
        if error := report["error"]:
            trouble = f"torchrun: {error['type']}: {error['message']}"
        return Ended(exits=exits, trouble=trouble, agent_code=code, stopped_by=stopped_by)

    def _exit(self, rank: int, worker: Mapping[str, Any]) -> WorkerExit:
        # An agent that was killed leaves the codes of its last workers unknown: they were killed with it.
        code = worker["exit_code"]
        error = _error(self._directory, rank) if code else None
        noticed = worker["time"] or time.time()
        # A worker's own clock is exact. Any other end was noticed up to one poll late.
        when = float(error["time"]) if error else noticed - elastic_interval()
        return WorkerExit(
            rank=rank,
            exit_code=128 + signal.SIGKILL if code is None else code,
            time=when,
            ended_by_agent=bool(worker["closed"]),
            error=error,
        )

    def _report(self) -> dict[str, Any]:
        found = _read(self._directory / elastic.REPORT)
        return found if found is not None else {"workers": {}, "error": None}


def elastic_interval() -> float:
    """Seconds between two looks of torchrun's agent at its workers (its --monitor-interval)."""
    return 0.1


def supervise(crew: Crew, children: Children, grace: float) -> Ended:
    """Wait for the crew; pass stops on to it; SIGKILL to everything ``grace`` seconds after the first stop."""
    signals = children.signals
    asked: list[int] = []
    deadline = 0.0
    killed = False
    while (code := children.poll(crew.pid)) is None:
        for number in signals.take():
            if number not in STOPS:
                crew.signal(number)
            elif number not in asked:
                asked.append(number)
                deadline = deadline or time.monotonic() + grace
                name = signal.Signals(number).name
                say(f"{name}: passed on to the workers, which have {grace:.0f} s to end")
        for number in asked:
            crew.stop(number, deadline)
        if asked and not killed and time.monotonic() > deadline:
            say(f"the workers did not end within {grace:.0f} s: SIGKILL")
            killed = True
            children.kill_all()
        signals.sleep(_TICK if asked else 60.0)
    # A shell dies at once of a stop, and the program in it may be saving.
    while asked and time.monotonic() < deadline and crew.lingers():
        signals.sleep(_TICK)
        children.reap()
    return crew.ended(code, asked[0] if asked else None)


def _error(directory: Path, rank: int) -> dict[str, Any] | None:
    return _read(directory / f"rank-{rank}.error.json")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
