"""What a rule has found (standard library only)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from hotfire.runtime.xla.doctor.sources import Sources
from hotfire.runtime.xla.doctor.timeline import Rank, Site


class Severity(StrEnum):
    """`--strict` fails on errors and warnings."""

    ERROR = "error"
    """The result is wrong, or the job does not run."""
    WARNING = "warning"
    """Time or money is lost at every step or every start."""
    NOTE = "note"
    """Worth knowing; costs little, or once."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault. `file` is relative to the source directory, empty without a known line."""

    rule: str
    severity: Severity
    message: str
    cost: str
    fix: str
    file: str = ""
    line: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "severity": self.severity.value}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Finding:
        """What `to_json` made."""
        return cls(**{**raw, "severity": Severity(raw["severity"])})

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""


@dataclass(frozen=True)
class Run:
    """All that the rules look at. `ranks` is never empty."""

    ranks: Sequence[Rank]
    sources: Sources
    hyperparameters: dict[str, str] = field(default_factory=dict)

    @property
    def first(self) -> Rank:
        """Rank 0 where it left anything: it alone has a trace."""
        return self.ranks[0]

    @property
    def world_size(self) -> int:
        return int(self.first.start.get("world_size", 1))

    def finding(
        self, rule: str, severity: Severity, site: Site | None, message: str, *, cost: str, fix: str
    ) -> Finding:
        file, line = self.sources.relative(site)
        return Finding(
            rule=rule, severity=severity, message=message, cost=cost, fix=fix, file=file, line=line
        )

    def quote(self, site: Site | None) -> str:
        """The source line, for a message: `` `loss.item()` `` or nothing."""
        text = self.sources.line(site)
        return f"`{text}`" if text else ""


Rule = Callable[[Run], list[Finding]]
