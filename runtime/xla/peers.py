"""Who the other ranks of a job are, where each waits, and which of them is at fault. Needs torch.

Everything is kept in the job's rendezvous store, by global rank: the process behind a rank, the
collective it has been waiting in for a while, and the reason for the job's first failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

DIAGNOSIS_SECONDS = 3.0
# How long a rank that gave up waits for the others to say where they are.
_ROLL_CALL_SECONDS = 1.0
_LOOK_SECONDS = 1.0
_SAME_PICTURE = 3
_FAILURE_KEY = "failure"
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective: the `number`-th of `group`, between the global ranks `members`."""

    operation: str
    group: str
    number: int
    members: tuple[int, ...]

    def same(self, other: Call | None) -> bool:
        return other is not None and (self.group, self.number) == (other.group, other.number)


class KnownFault(RuntimeError):
    """A call cannot finish; the message names the rank at fault."""


@dataclass(frozen=True, kw_only=True)
class _Process:
    """Where a rank lives: process ids mean something only within one PID namespace."""

    pid: int
    started: str
    namespace: str
    host: str


class Peers:
    """This process's view of all ranks of the job; it is global rank `rank` of `size`."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._known: dict[int, _Process] = {}
        store.set(f"process/{rank}", json.dumps(asdict(_this_process())))

    def remember(self, members: Sequence[int]) -> None:
        """Learn the processes behind `members` while the store is there to be asked."""
        for rank in members:
            self._process(rank)

    def here(self, members: Sequence[int]) -> list[int] | None:
        """The process ids of `members` when all live on this host, in one PID namespace."""
        found = [process for rank in members if (process := self._process(rank)) is not None]
        if len({(p.host, p.namespace) for p in found}) > 1 or len(found) < len(members):
            return None
        return [process.pid for process in found]

    # Failures.

    def announce(self, fault: str) -> None:
        """First come, first kept: later failures are mostly echoes of the first."""
        self._attempt(lambda: self._store.compare_set(_FAILURE_KEY, "", fault))

    def known_fault(self, members: Sequence[int]) -> str | None:
        """The announced failure, or a member of this host whose process is gone."""
        return self._read(_FAILURE_KEY) or self._find_dead(members)

    def diagnose(self, call: Call, error: str, *, waited: float, limit: float) -> str:
        """Which rank is at fault for `error`, waiting a little for somebody to find out."""
        self.wait_in(call)
        timed_out = waited >= limit
        deadline = time.monotonic() + (_ROLL_CALL_SECONDS if timed_out else DIAGNOSIS_SECONDS)
        while (fault := self.known_fault(call.members)) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if fault is None and timed_out:
            fault = self._nobody_came(call, waited)
            self.announce(fault)
            fault = self._read(_FAILURE_KEY) or fault
        return fault or self._by_address(call, error)

    def _nobody_came(self, call: Call, waited: float) -> str:
        absent = self.absent(call)
        if not absent:
            return f"no rank was missing from {call.operation}, and {waited:.0f} s were too short"
        return (
            f"no answer within {waited:.0f} s from {_ranks(absent)}: slower than the others, or "
            f"on a path without this {call.operation}{self._elsewhere(absent)}"
        )

    def _find_dead(self, members: Sequence[int]) -> str | None:
        """A vanished process of this host; announced, for the hosts that cannot see it."""
        me = self._process(self._rank)
        for rank in members:
            process = self._process(rank)
            if process is None or me is None or process.namespace != me.namespace:
                continue
            if rank != self._rank and _process_start(process.pid) != process.started:
                where = f"{process.pid} on {process.host}"
                fault = f"rank {rank} ended: its process {where} is gone, see its log"
                self.announce(fault)
                return self._read(_FAILURE_KEY) or fault
        return None

    def _by_address(self, call: Call, error: str) -> str:
        """Nobody could look: say at least which hosts the other ranks were on."""
        if "onnection" not in error:
            return error
        others = ", ".join(
            f"{rank} on {process.host}"
            for rank in call.members
            if rank != self._rank and (process := self._process(rank)) is not None
        )
        return f"a rank closed its connection without a reason (the others were: {others}): {error}"

    # Where each rank waits.

    def wait_in(self, call: Call) -> None:
        """Say that this rank waits in `call`."""
        self._attempt(lambda: self._store.set(f"waits/{self._rank}", json.dumps(asdict(call))))

    def go_on(self) -> None:
        """Say that this rank waits no more."""
        self._attempt(lambda: self._store.delete_key(f"waits/{self._rank}"))

    def absent(self, call: Call) -> list[int]:
        """The members that have not said that they wait in `call`."""
        return [r for r in call.members if r != self._rank and not call.same(self._waits(r))]

    def stuck(self) -> str | None:
        """Where each rank waits, when all do and no collective has all its members; else None.

        Only a picture that stays the same proves it: ask again.
        """
        calls = {rank: self._waits(rank) for rank in range(self._size)}
        waiting = {rank: call for rank, call in calls.items() if call is not None}
        if len(waiting) < self._size or any(
            all(call.same(waiting[member]) for member in call.members) for call in waiting.values()
        ):
            return None
        places = ", ".join(f"rank {r} in {_described(call)}" for r, call in waiting.items())
        return f"the ranks wait for each other: {places}"

    def straggling(self, call: Call, seconds: float) -> str | None:
        """The line about who is late, when this is the lowest rank that waits in `call`."""
        absent = self.absent(call)
        if not absent or any(r < self._rank and r not in absent for r in call.members):
            return None
        late = f"{_ranks(absent)}{self._elsewhere(absent)}"
        return f"rank {self._rank} has waited {seconds:.0f} s in {call.operation} for {late}"

    def _elsewhere(self, ranks: Sequence[int]) -> str:
        found = [f"rank {r} in {_described(c)}" for r in ranks if (c := self._waits(r)) is not None]
        return f" (waiting elsewhere: {', '.join(found)})" if found else ""

    def _waits(self, rank: int) -> Call | None:
        text = self._read(f"waits/{rank}")
        if text is None:
            return None
        fields = json.loads(text)
        return Call(**fields | {"members": tuple(fields["members"])})

    def _process(self, rank: int) -> _Process | None:
        if rank not in self._known:
            text = self._read(f"process/{rank}")
            if text is None:
                return None
            self._known[rank] = _Process(**json.loads(text))
        return self._known[rank]

    def _read(self, key: str) -> str | None:
        """The value of `key`, which `get` alone would wait for."""
        if not self._attempt(lambda: self._store.check([key])):
            return None
        text = self._attempt(lambda: self._store.get(key))
        return None if text is None else text.decode()

    @staticmethod
    def _attempt(call: Callable[[], _T]) -> _T | None:
        """The store dies with the process that serves it; then it knows nothing more."""
        try:
            return call()
        except RuntimeError:
            return None


class Watch:
    """Looks after one call that takes long: a fault ends it, a late rank is named in the log.

    Wait for `seconds` before each `look`.
    """

    def __init__(self, peers: Peers, call: Call, patience: float) -> None:
        self.seconds = patience
        self._peers = peers
        self._call = call
        self._started = time.monotonic()
        self._say_at = patience
        self._pictures: list[str | None] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pictures:
            self._peers.go_on()

    def look(self) -> None:
        """Raise KnownFault when the call cannot finish; say who is late now and then."""
        self.seconds = _LOOK_SECONDS
        if not self._pictures:
            self._peers.wait_in(self._call)
        fault = self._peers.known_fault(self._call.members) or self._deadlock()
        if fault:
            raise KnownFault(fault)
        waited = time.monotonic() - self._started
        if waited >= self._say_at and (line := self._peers.straggling(self._call, waited)):
            self._say_at = 2 * waited
            print(f"hotfire: {line}", file=sys.stderr, flush=True)

    def _deadlock(self) -> str | None:
        """The same picture several times: nobody has moved meanwhile."""
        self._pictures.append(self._peers.stuck())
        last = set(self._pictures[-_SAME_PICTURE:])
        if len(self._pictures) < _SAME_PICTURE or len(last) > 1 or None in last:
            return None
        self._peers.announce(str(self._pictures[-1]))
        return self._pictures[-1]


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(str(rank) for rank in ranks)}"


def _described(call: Call) -> str:
    return f"{call.operation} (call {call.number} of group {call.group})"


def _this_process() -> _Process:
    return _Process(
        pid=os.getpid(),
        started=_process_start(os.getpid()),
        namespace=f"{_file('/proc/sys/kernel/random/boot_id')} {_link('/proc/self/ns/pid')}",
        host=os.environ.get("SM_CURRENT_HOST") or os.uname().nodename,
    )


def _process_start(pid: int) -> str:
    """The start time of a living process in clock ticks; "" when it is gone or a zombie (proc(5))."""
    fields = _file(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return "" if not fields or fields[0] in "ZX" else fields[19]


def _file(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _link(path: str) -> str:
    with contextlib.suppress(OSError):
        return str(Path(path).readlink())
    return ""
