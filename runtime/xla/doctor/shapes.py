"""Inputs of the model whose shape changes between calls from the same line."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from hotfire.runtime.xla.doctor.findings import Run
from hotfire.runtime.xla.doctor.timeline import Event, Segment, Site, site_of


@dataclass(frozen=True, kw_only=True)
class Change:
    """`name`'s `dimension` takes the `sizes`, in the order of their first appearance."""

    module: str
    name: str
    dimension: int
    sizes: tuple[int, ...]
    site: Site | None
    """Where the module is called."""
    origin: Site | None
    """Where the batches are made: the collate function or the loader, else `site`."""
    partial: bool
    """Whether a loader's last batch explains it (`rules_data.partial_batch` tells of that)."""


def by_caller(run: Run) -> dict[str, list[Event]]:
    """Calls with a new signature, by the line and mode of the call."""
    calls: dict[str, list[Event]] = defaultdict(list)
    for event in run.first.of("call"):
        calls[event["caller"]].append(event)
    return calls


def is_shape_change(run: Run, segment: Segment) -> bool:
    """Whether a call in `segment` brought a signature that its line had not seen, after a first."""
    firsts = {id(events[0]) for events in by_caller(run).values()}
    return any(e["event"] == "call" and id(e) not in firsts for e in segment.events)


def changes(run: Run) -> list[Change]:
    """One change for each calling line: the first input, and its last dimension, that vary.

    A batch's tensors vary together; one name is enough to find the cause.
    """
    found = []
    for events in by_caller(run).values():
        if change := _change(run, events):
            found.append(change)
    # The same batches go through the model and its loss.
    unique: dict[tuple[Site | None, bool], Change] = {}
    for change in found:
        unique.setdefault((change.origin, change.dimension > 0), change)
    return list(unique.values())


def _change(run: Run, events: list[Event]) -> Change | None:
    sizes: dict[tuple[str, int], list[int]] = {}
    for event in events:
        for name, (shape, _, _) in event["tensors"].items():
            for dimension, size in enumerate(shape):
                seen = sizes.setdefault((name, dimension), [])
                if size not in seen:
                    seen.append(size)
    varying = {key: seen for key, seen in sizes.items() if len(seen) > 1}
    if not varying:
        return None
    name, dimension = max(varying, key=lambda key: (key[1] > 0, -list(varying).index(key)))
    seen = varying[name, dimension]
    loader = loader_of(run, max(sizes[name, 0]) if (name, 0) in sizes else 0)
    site = site_of(events[0]["site"])
    origin = site_of(loader["collate"]) or site_of(loader["site"]) if loader else None
    return Change(
        module=events[0]["module"],
        name=name,
        dimension=dimension,
        sizes=tuple(seen),
        site=site,
        origin=origin or site,
        partial=dimension == 0 and loader is not None and has_partial_batch(loader),
    )


def loader_of(run: Run, batch_size: int) -> Event | None:
    """The loader with that batch size."""
    loaders = [e for e in run.first.of("loader") if e["batch_size"] == batch_size]
    return loaders[-1] if loaders else None


def has_partial_batch(loader: Event) -> bool:
    rows, size = loader["rows"], loader["batch_size"]
    plain = loader["plain_batches"] and not loader["drop_last"]
    return bool(plain and rows and size and rows % size)
