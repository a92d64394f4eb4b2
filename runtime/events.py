"""What a running job reports. An observer is a callable that takes one event and must not raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from hotfire.runtime.status import SecondaryStatus

if TYPE_CHECKING:
    from hotfire.runtime.observe.metrics import MetricPoint


@dataclass(frozen=True, kw_only=True, slots=True)
class LogChunk:
    """Consecutive bytes of one host's merged stdout and stderr, as the host wrote them.

    A chunk and not a line, because a million lines must cost less than the script that prints them; a chunk may end
    anywhere, so that a progress bar which only returns the carriage is seen at once.
    """

    host: str
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """The job entered a secondary status, or its message changed (contract 5.2)."""

    time: datetime
    status: SecondaryStatus
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """One line of talk for the user: an assumption made, a fallback taken, a warning."""

    text: str
    warning: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Bytes moved so far by one activity (a channel's download, an artifact's upload). ``total`` is None when unknown."""

    activity: str
    done: int
    total: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """Values that MetricDefinitions took from one chunk of a host's log."""

    points: Sequence[MetricPoint]


Event = LogChunk | Transition | Note | Progress | Metrics
Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The observer that does not look."""
