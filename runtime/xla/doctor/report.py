"""A report: text for people, JSON for programs, and the comparison with a stored budget."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotfire.runtime.xla.doctor import graphs as budget_of
from hotfire.runtime.xla.doctor.findings import Finding, Severity
from hotfire.runtime.xla.doctor.graphs import Graph

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the judge says of one run. `error` is what ended it before its time, in a line."""

    findings: tuple[Finding, ...] = ()
    graphs: tuple[Graph, ...] = ()
    steps: int = 0
    world_size: int = 1
    compilations: int = 0
    compile_seconds: float = 0.0
    error: str = ""
    change: str = field(default="")
    """Against a stored budget, in words; empty without one."""

    @property
    def failing(self) -> list[Finding]:
        """What ``--strict`` fails on."""
        return [f for f in self.findings if f.severity is not Severity.NOTE]

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "steps": self.steps,
            "world_size": self.world_size,
            "findings": [finding.to_json() for finding in self.findings],
            "graphs": [graph.to_json() for graph in self.graphs],
            "compilations": self.compilations,
            "compile_seconds": round(self.compile_seconds, 3),
            "estimate": budget_of.estimate(self.graphs),
            "budget": self.change,
            "error": self.error,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Report:
        """What `to_json` made."""
        return cls(
            findings=tuple(Finding.from_json(entry) for entry in raw["findings"]),
            graphs=tuple(Graph(**entry) for entry in raw["graphs"]),
            steps=raw["steps"],
            world_size=raw["world_size"],
            compilations=raw["compilations"],
            compile_seconds=raw["compile_seconds"],
            error=raw["error"],
            change=raw["budget"],
        )

    def text(self) -> str:
        """Findings with place, cost and fix; then the graphs. All before an error, if there was one."""
        lines = [line for finding in self.findings for line in _lines(finding)]
        if self.error:
            lines.insert(0, f"the job failed after {_count(self.steps, 'step')}: {self.error}")
        elif not self.findings:
            lines.append("no findings")
        lines += ["", *self._budget_lines()]
        return "\n".join(lines)

    def _budget_lines(self) -> list[str]:
        workers = f", {self.world_size} workers" if self.world_size > 1 else ""
        lines = [f"{_count(len(self.graphs), 'graph')} in {_count(self.steps, 'step')}{workers}:"]
        for graph in self.graphs:
            place = f"  {graph.file}:{graph.line}" if graph.file else ""
            lines.append(
                f"  {graph.id}  {graph.kind:<10} {graph.nodes or '?':>6} nodes {graph.inputs:>5} in "
                f"{graph.outputs:>5} out  run {graph.runs}x from step {graph.step}{place}"
            )
        if self.graphs:
            lines.append(budget_of.estimate(self.graphs))
        return [*lines, *filter(None, [self.change])]


def _lines(finding: Finding) -> list[str]:
    place = f"{finding.place}: " if finding.place else ""
    return [
        f"{place}{finding.severity.value}: {finding.message} [{finding.rule}]",
        f"    cost: {finding.cost}",
        f"    fix:  {finding.fix}",
    ]


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def stored(path: Path) -> int | None:
    """The number of graphs in a budget file; None where there is none yet.

    Raises:
        ValueError: the file is no budget.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    graphs = content.get("graphs") if isinstance(content, dict) else None
    if not isinstance(graphs, int):
        raise ValueError(f"{path} is no graph budget")  # noqa: TRY004
    return graphs


def store(path: Path, report: Report) -> None:
    """Write what later runs are compared with. Graph hashes differ between versions: the count."""
    path.write_text(json.dumps({"graphs": len(report.graphs)}) + "\n", encoding="utf-8")


def compared(before: int, report: Report) -> str:
    """``this change adds 3 graphs (2 -> 5)``; empty when nothing changed."""
    now = len(report.graphs)
    if now == before:
        return ""
    verb = "adds" if now > before else "removes"
    return f"this change {verb} {_count(abs(now - before), 'graph')} ({before} -> {now})"
