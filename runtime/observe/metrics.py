"""MetricDefinitions over the log of a job: values as they come, the last of each, and what a pattern got wrong.

The rules (contract 6.1, 6.2): the definitions apply to each line of every host, every match counts, and the first
capture group must be a number. Before that, control characters become ``#`` and three octal digits, as on the
service: a tab is ``#011``, and a carriage return (``#015``) does not end a line.
"""

from __future__ import annotations

import math
import re
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple, Self

from hotfire.runtime.events import Event, LogChunk
from hotfire.runtime.observe.patterns import Engine, Found, Matcher, matcher
from hotfire.runtime.spec import MetricDefinition

LINE_CAP = 256 << 10
"""Bytes of one log event. A longer line goes on in the next event, so a match across the border is not found."""
FINAL_METRICS = 40
"""The most entries of FinalMetricDataList (contract 6.2)."""

_NOT_CONTROL = bytes(code for code in range(256) if code == 10 or 32 <= code != 127)
# What Java's and Python's parsers agree on, less NaN and infinity, which CloudWatch refuses.
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_FLOAT32_END = (2 - 2**-24) * 2.0**127  # from here on, rounding to float32 gives infinity
_ESCAPED = re.compile(r"(0[0-3][0-7]|177)")


class MetricPoint(NamedTuple):
    """One value; ``time`` in seconds since the epoch, when its line was read."""

    time: float
    name: str
    host: str
    value: float


Sink = Callable[[Sequence[MetricPoint]], None]


def escape(data: bytes) -> bytes:
    """``data`` with each control character but the newline as ``#`` and three octal digits (contract 6.1)."""
    for code in set(data.translate(None, _NOT_CONTROL)):
        data = data.replace(bytes([code]), b"#%03o" % code)
    return data


def number(text: str) -> float | None:
    """The value of a first capture group; None unless it is a finite decimal number within float32's range."""
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if abs(value) < _FLOAT32_END else None


def _float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


class LineCutter:
    """Chunks of one host to whole log events: escaped, valid UTF-8, none longer than :data:`LINE_CAP`.

    The result does not depend on where the chunks end.
    """

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """The events that ``data`` completed, each with a newline."""
        text = self._pending + escape(data)
        pieces: list[bytes] = []
        start = 0
        while True:
            end = text.rfind(b"\n", start, start + LINE_CAP + 1)
            if end >= 0:
                end += 1
                pieces.append(text[start:end])
            elif len(text) - start > LINE_CAP:
                end = start + LINE_CAP
                pieces += (text[start:end], b"\n")
            else:
                break
            start = end
        self._pending = text[start:]
        return _valid(b"".join(pieces))

    def rest(self) -> bytes:
        """What never got its newline."""
        text, self._pending = self._pending, b""
        return _valid(text + b"\n") if text else b""


def _valid(text: bytes) -> bytes:
    """RE2's dot matches no byte that is not UTF-8: such bytes become U+FFFD."""
    return text if text.isascii() else text.decode("utf-8", "replace").encode()


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What one definition did. ``matches`` counts every match, ``values`` those that were numbers."""

    name: str
    regex: str
    matches: int = 0
    values: int = 0
    last: float | None = None
    last_time: float = 0.0
    smallest: float | None = None
    largest: float | None = None
    not_a_number: str | None = None
    """An example of a first capture group that is no number."""
    lost_signs: int = 0
    lost_sign: str = ""
    """An example of a value in front of which the line has a minus sign that the group left out."""
    escapes: int = 0
    escape: str = ""
    """An example of a value that begins with the digits of an escaped control character (``#011`` of a tab)."""
    gave_up: bool = False

    @property
    def counts(self) -> str:
        """``matched 12, not a number 2 (for example '0:00:14')``."""
        text = f"matched {self.matches}"
        if wrong := self.matches - self.values:
            text += f", not a number {wrong}"
            if self.not_a_number is not None:
                text += f" (for example {self.not_a_number!r})"
        return text

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know about the pattern, a line each."""
        found = []
        if self.gave_up:
            found.append(
                f"metric {self.name!r} was given up: its pattern took too long on several lines; "
                "write it without nested repetition"
            )
        if self.matches and not self.values:
            found.append(f"metric {self.name!r} never got a number: {self.counts}")
        elif self.matches > self.values:
            found.append(f"metric {self.name!r} was not always a number: {self.counts}")
        if self.lost_signs:
            found.append(
                f"metric {self.name!r} lost a minus sign in {self.lost_signs} of {self.values} values: it took "
                f"{self.lost_sign!r} from '-{self.lost_sign}'; let the group begin with -? and nothing before it "
                "take the sign"
            )
        if self.escapes:
            found.append(
                f"metric {self.name!r} took the digits of a control character in {self.escapes} of {self.values} "
                f"values: {self.escape!r} from '#{self.escape}' (a tab reaches the pattern as #011, as on the service)"
            )
        return tuple(found)

    def summary(self) -> dict[str, Any]:
        """For the receipt, and ``describe``."""
        return {"name": self.name, "last": self.last, "counts": self.counts}

    def to_json(self) -> dict[str, Any]:
        return {slot: getattr(self, slot) for slot in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        return cls(**raw)


@dataclass(kw_only=True)
class _Tally:
    """Statistics while they grow."""

    definition: MetricDefinition
    matches: int = 0
    values: int = 0
    last: float | None = None
    last_time: float = 0.0
    smallest: float = math.inf
    largest: float = -math.inf
    not_a_number: str | None = None
    lost_signs: int = 0
    lost_sign: str = ""
    escapes: int = 0
    escape: str = ""

    def count(self, found: Found, now: float) -> float | None:
        self.matches += 1
        value = None if found.text is None else number(found.text)
        if value is None:
            if self.not_a_number is None and found.text is not None:
                self.not_a_number = found.text[:80]
            return None
        assert found.text is not None
        self._look_before(found.before, found.text[:80])
        self.values += 1
        self.last, self.last_time = value, now
        self.smallest = min(self.smallest, value)
        self.largest = max(self.largest, value)
        return value

    def _look_before(self, before: str, text: str) -> None:
        word = before[:-1].isalnum() or before[:-1] == "_"  # eval-1 is no negative number
        if before.endswith("-") and not word and text[:1] not in "+-":
            self.lost_signs += 1
            self.lost_sign = self.lost_sign or text
        elif before.endswith("#") and _ESCAPED.match(text):
            self.escapes += 1
            self.escape = self.escape or text

    def frozen(self, gave_up: bool) -> Statistics:
        return Statistics(
            name=self.definition.name,
            regex=self.definition.regex,
            matches=self.matches,
            values=self.values,
            last=self.last,
            last_time=self.last_time,
            smallest=self.smallest if self.values else None,
            largest=self.largest if self.values else None,
            not_a_number=self.not_a_number,
            lost_signs=self.lost_signs,
            lost_sign=self.lost_sign,
            escapes=self.escapes,
            escape=self.escape,
            gave_up=gave_up,
        )


def nowhere(points: Sequence[MetricPoint]) -> None:
    """The sink that keeps nothing."""


@dataclass(kw_only=True)
class Scraper:
    """An observer that takes values out of :class:`~hotfire.runtime.events.LogChunk`; other events pass unseen.

    To be called by one thread at a time (:class:`~hotfire.runtime.observe.logs.LogPump` has one). ``sink`` hears of
    the points of each chunk. Leaving the ``with`` takes the lines that never got their newline.
    """

    definitions: Sequence[MetricDefinition]
    sink: Sink = nowhere
    engine: Engine = Engine.RE2
    clock: Callable[[], float] = time.time
    _matcher: Matcher = field(init=False)
    _tallies: list[_Tally] = field(init=False)
    _cutters: dict[str, LineCutter] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._matcher = matcher(self.definitions, self.engine)
        self._tallies = [_Tally(definition=one) for one in self.definitions]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __call__(self, event: Event) -> None:
        if isinstance(event, LogChunk) and self.definitions:
            cutter = self._cutters.setdefault(event.host, LineCutter())
            self._take(event.host, cutter.feed(event.data))

    def close(self) -> None:
        for host, cutter in self._cutters.items():
            self._take(host, cutter.rest())

    def _take(self, host: str, text: bytes) -> None:
        now = self.clock()
        points = []
        for found in self._matcher.search(text):
            tally = self._tallies[found.definition]
            value = tally.count(found, now)
            if value is not None:
                points.append(MetricPoint(now, tally.definition.name, host, value))
        if points:
            self.sink(points)

    @property
    def statistics(self) -> tuple[Statistics, ...]:
        """One per definition, in their order."""
        return tuple(
            tally.frozen(gave_up)
            for tally, gave_up in zip(self._tallies, self._matcher.gave_up, strict=True)
        )


def final_metrics(statistics: Sequence[Statistics]) -> list[dict[str, Any]]:
    """FinalMetricDataList: the last value of each metric that has one, as float32, to the second (contract 6.2).

    Two definitions of one name are one metric: the later value counts.
    """
    latest: dict[str, tuple[float, float]] = {}
    for one in statistics:
        if one.last is not None:
            known = latest.get(one.name)
            if known is None or known[0] <= one.last_time:
                latest[one.name] = (one.last_time, one.last)
    return [
        {
            "MetricName": name,
            "Value": _float32(value),
            "Timestamp": datetime.fromtimestamp(int(moment), UTC).isoformat(),
        }
        for name, (moment, value) in list(latest.items())[:FINAL_METRICS]
    ]
