"""The events of one rank, cut at its step markers (standard library only)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hotfire.runtime.xla.doctor import trace
from hotfire.runtime.xla.doctor.trace import Cause, Frame, Report

Event = Mapping[str, Any]
Site = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Segment:
    """What happened up to one step marker, the marker's own execution included."""

    mark: Event
    events: tuple[Event, ...]
    reports: tuple[Report, ...]
    opt_before: int
    """Optimizer steps made before the segment began."""
    trained: bool
    """Whether a backward pass ran in it."""

    @property
    def opt(self) -> int:
        return int(self.mark["opt"])

    def causes(self, *causes: Cause, compiled: bool) -> list[Report]:
        return [r for r in self.reports if r.compiled is compiled and r.cause in causes]


@dataclass(frozen=True)
class Rank:
    """One worker's account of itself."""

    events: Sequence[Event]
    reports: Sequence[Report] = field(default=())

    @cached_property
    def start(self) -> Event:
        return next((e for e in self.events if e["event"] == "start"), {})

    @cached_property
    def end(self) -> Event:
        """Empty for a worker that was killed."""
        return next((e for e in self.events if e["event"] == "end"), {})

    @property
    def number(self) -> int:
        return int(self.start.get("rank", 0))

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event["event"] in kinds]

    @cached_property
    def segments(self) -> list[Segment]:
        """Ends with what came after the last marker, if that ran anything."""
        found, waiting, reports = [], list[Event](), list(self.reports)
        opt, back = 0, 0
        closing = {**self.end, "event": "mark", "seconds": 0.0, "wait": 0.0, "nodes": []}
        tail = [closing] if self.end else []
        for event in [*(e for e in self.events if e["event"] != "end"), *tail]:
            if event["event"] != "mark":
                waiting.append(event)
                continue
            inside = [r for r in reports if r.end <= event["trace"]]
            reports = reports[len(inside) :]
            if event is not closing or inside:
                trained = event["back"] > back
                found.append(
                    Segment(
                        mark=event,
                        events=tuple(waiting),
                        reports=tuple(inside),
                        opt_before=opt,
                        trained=trained,
                    )
                )
            waiting, opt, back = [], event["opt"], event["back"]
        return found

    @cached_property
    def observed(self) -> list[Segment]:
        """The segments that tell how often something happens.

        After the wanted number of steps epochs are cut short: what comes once per epoch would
        look frequent. The first evaluation and saving after them still count.
        """
        wanted = self.start.get("steps") or len(self.segments) + 1
        found = []
        for segment in self.segments:
            if segment.trained and segment.opt_before >= wanted:
                break
            found.append(segment)
        return found

    @cached_property
    def observed_steps(self) -> int:
        """Optimizer steps within `observed`."""
        return max((segment.opt for segment in self.observed), default=0)

    @cached_property
    def reads(self) -> dict[Site, Event]:
        """Values that the host fetched, by line."""
        found: dict[Site, Event] = {}
        for entry in self.end.get("reads", ()):
            site = site_of(entry["site"])
            if site is not None and entry["steps"] > found.get(site, {"steps": 0})["steps"]:
                found[site] = entry
        return found

    @property
    def training(self) -> list[Segment]:
        return [segment for segment in self.segments if segment.trained]

    def user_site(self, frames: Sequence[Frame]) -> Site | None:
        """The innermost frame that belongs to the script."""
        prefixes = tuple(f"{path}/" for path in self.start.get("libraries", ()))
        for frame in frames:
            if not frame.file.startswith(("<", *prefixes)):
                return frame.file, frame.line
        return None


def read(directory: Path) -> list[Rank]:
    """Every rank that left events in `directory`, by number; a last line cut short is left out."""
    ranks = []
    for path in directory.glob("rank-*.jsonl"):
        events = [json.loads(line) for line in _lines(path)]
        written = path.with_name(path.stem.replace("rank-", "trace-") + ".txt")
        reports = trace.parse(written.read_bytes()) if written.is_file() else []
        if events:
            ranks.append(Rank(events, reports))
    return sorted(ranks, key=lambda rank: rank.number)


def _lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def site_of(value: Any) -> Site | None:
    """A site as JSON gave it back."""
    return (str(value[0]), int(value[1])) if value else None
