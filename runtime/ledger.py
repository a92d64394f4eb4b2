"""What a synchronised destination holds, what has to be looked at when, and when to try again. Pure: time is an argument."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from hotfire.runtime.synced import Signature

SETTLE_SECONDS = 0.5
"""Between a file's close and its upload: a file that is renamed into place is then seen under its last name only."""
UNSURE_SECONDS = 2.0
"""How long a file whose close was not seen must stay as it is before it counts as closed."""

_FIRST_DELAY = 0.25
_LONGEST_DELAY = 30.0
_LONGEST_DELAY_IN_A_HURRY = 1.0


class Task(NamedTuple):
    """A name to bring up to date, given back by one of :meth:`Ledger.done`, ``again`` or ``failed``."""

    name: str
    look: Signature | None
    """What the file must still be like to count as closed; None where its close was seen."""
    tries: int
    """How often it has failed before."""


@dataclass
class _Waiting:
    due: float
    look: Signature | None = None
    tries: int = 0


@dataclass
class Ledger:
    """``known`` maps name to what the destination holds of ours: only that may ever be deleted there."""

    known: dict[str, Signature] = field(default_factory=dict)
    settle: float = SETTLE_SECONDS
    hurry: bool = False
    """Nothing waits for its time any more, except to try again."""
    _waiting: OrderedDict[str, _Waiting] = field(default_factory=OrderedDict)
    _busy: dict[str, Task] = field(default_factory=dict)
    _failures: int = 0
    _pause_until: float = float("-inf")

    def closed(self, name: str, now: float) -> None:
        """``name`` was closed, deleted or moved: look at it soon. A name that waits already keeps its time."""
        item = self._waiting.get(name)
        if item is None or item.look is not None:
            self._waiting[name] = _Waiting(now + self.settle)

    def appeared(self, name: str, look: Signature, now: float) -> None:
        """``name`` is there and may still be written to."""
        if name not in self._waiting and self.known.get(name) != look:
            self._waiting[name] = _Waiting(now + UNSURE_SECONDS, look)

    def gone(self, name: str, now: float) -> None:
        """``name``, a file or a directory, is gone with all below it."""
        below = name + "/"
        for one in [one for one in self.known if one.startswith(below)]:
            self.closed(one, now)
        self.closed(name, now)

    def take(self, now: float) -> Task | None:
        """What is due, if anything."""
        if now < self._pause_until:
            return None
        for name, item in self._waiting.items():
            soon = self.hurry and not item.tries
            if name not in self._busy and (soon or item.due <= now):
                del self._waiting[name]
                task = Task(name, None if self.hurry else item.look, item.tries)
                self._busy[name] = task
                return task
        return None

    def next_due(self) -> float | None:
        """When :meth:`take` may have something, if nothing else happens before."""
        times = (item.due for name, item in self._waiting.items() if name not in self._busy)
        first = min(times, default=None)
        return None if first is None else max(first, self._pause_until)

    def done(self, task: Task, signature: Signature | None) -> None:
        """The destination now holds ``signature``; nothing of ours if it is None."""
        del self._busy[task.name]
        if signature is None:
            self.known.pop(task.name, None)
        else:
            self.known[task.name] = signature

    def again(self, task: Task, look: Signature, now: float) -> None:
        """The file was still being written to."""
        del self._busy[task.name]
        if task.name not in self._waiting:
            self._waiting[task.name] = _Waiting(now + UNSURE_SECONDS, look)

    def failed(self, task: Task, now: float) -> None:
        """Try again later, ever later; and nothing else for a moment, since a destination rarely refuses one file."""
        del self._busy[task.name]
        item = self._waiting.setdefault(task.name, _Waiting(now))
        item.look, item.tries = None, task.tries + 1
        item.due = now + self._delay(task.tries)
        if now >= self._pause_until:  # not once more for each of several workers
            self._pause_until = now + self._delay(self._failures)
            self._failures += 1

    def _delay(self, tries: int) -> float:
        longest = _LONGEST_DELAY_IN_A_HURRY if self.hurry else _LONGEST_DELAY
        return float(min(longest, _FIRST_DELAY * 2 ** min(tries, 10)))

    def worked(self) -> None:
        """The destination answered well: failures are over."""
        self._failures, self._pause_until = 0, float("-inf")

    def be_quick(self) -> None:
        """From now on nothing changes any more: take everything at once, and try again often."""
        self.hurry = True
        self.worked()
        for item in self._waiting.values():
            item.tries = 0

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def empty(self) -> bool:
        return not self._waiting and not self._busy

    @property
    def unfinished(self) -> list[str]:
        """The names that wait or are being worked on."""
        return sorted({*self._waiting, *self._busy})
