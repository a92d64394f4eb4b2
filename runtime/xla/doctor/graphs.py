"""The graph budget: which programs an accelerator's compiler would get from these steps.

On a device a collective is part of the graph. The CPU emulation cuts the graph there, so the parts
between two real boundaries (a step marker, a value that the host wants) are one graph here. Ranks
run the same graphs: rank 0's count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hotfire.runtime.xla.doctor.findings import Run
from hotfire.runtime.xla.doctor.timeline import Segment, Site
from hotfire.runtime.xla.doctor.trace import Cause, Report

# Of one graph by neuronx-cc. An assumption, stated with every estimate: compilation grows with the
# graph and was never measured here.
ASSUMED_MINUTES = (1.0, 10.0)
ASSUMED_MINUTES_SMALL = (0.1, 1.0)
SMALL_NODES = 50


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One program. `nodes` counts IR nodes, `step` the optimizer steps before its first run."""

    id: str
    kind: str
    """training, evaluation, or value (a part that ran because the host wanted a value)."""
    nodes: int
    inputs: int
    outputs: int
    runs: int
    step: int
    file: str = ""
    line: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A run of one device graph: its reports in order, and why it ended."""

    reports: tuple[Report, ...]
    nodes: int
    segment: Segment

    @property
    def key(self) -> str:
        return "+".join(report.graph for report in self.reports)

    @property
    def last(self) -> Report:
        return self.reports[-1]


def parts(segments: Sequence[Segment]) -> list[Part]:
    """Every run of a device graph, in order."""
    found = []
    for segment in segments:
        runs = [r for r in segment.reports if not r.compiled]
        sizes = list(segment.mark["nodes"])
        # Without a size for each run there is no telling which is whose.
        sizes = sizes if len(sizes) == len(runs) else [0] * len(runs)
        waiting: list[tuple[Report, int]] = []
        for report, size in zip(runs, sizes, strict=True):
            if report.cause is Cause.OWN:
                continue
            waiting.append((report, size))
            if report.cause is not Cause.COLLECTIVE:
                found.append(_part(waiting, segment))
                waiting = []
        if waiting:
            found.append(_part(waiting, segment))
    return found


def _part(waiting: list[tuple[Report, int]], segment: Segment) -> Part:
    reports = tuple(report for report, _ in waiting)
    return Part(reports=reports, nodes=sum(size for _, size in waiting), segment=segment)


def budget(run: Run) -> list[Graph]:
    """The distinct graphs in the order of their first runs; compilations alone in a summary."""
    rank = run.first
    grouped: dict[str, list[Part]] = {}
    for part in parts(rank.segments):
        grouped.setdefault(part.key, []).append(part)
    return [_graph(run, found) for found in grouped.values()]


def _graph(run: Run, found: list[Part]) -> Graph:
    first = found[0]
    file, line = run.sources.relative(_site(run, first))
    return Graph(
        id=first.key[:12] if len(first.reports) == 1 else _short(first.key),
        kind=_kind(first),
        nodes=first.nodes,
        inputs=first.reports[0].inputs,
        outputs=first.last.outputs,
        runs=len(found),
        step=first.segment.opt_before,
        file=file,
        line=line,
    )


def _short(key: str) -> str:
    import hashlib

    return hashlib.blake2b(key.encode(), digest_size=6).hexdigest()


def _kind(part: Part) -> str:
    if part.last.cause is Cause.EVALUATION:
        return "value"
    return "training" if part.segment.trained else "evaluation"


def _site(run: Run, part: Part) -> Site | None:
    return run.first.user_site(part.last.frames)


def estimate(graphs: Sequence[Graph]) -> str:
    """What compiling them costs on Trainium, with what it assumes."""
    small = sum(0 < graph.nodes < SMALL_NODES for graph in graphs)
    both = zip(ASSUMED_MINUTES_SMALL, ASSUMED_MINUTES, strict=True)
    low, high = (small * less + (len(graphs) - small) * more for less, more in both)
    return (
        f"on Trainium one neuronx-cc compilation each, about {low:.1f} to {high:.0f} minutes in "
        f"all, assuming {ASSUMED_MINUTES[0]:.0f} to {ASSUMED_MINUTES[1]:.0f} minutes a graph "
        f"({ASSUMED_MINUTES_SMALL[0]} to {ASSUMED_MINUTES_SMALL[1]:.0f} below {SMALL_NODES} nodes), "
        "one after another, nothing cached; not measured"
    )
