"""What rank 0 prints at the end of an XLA job."""

from __future__ import annotations

from pathlib import Path

from hotfire.runtime.xla.doctor.judge import judge
from hotfire.runtime.xla.doctor.timeline import read

_FINDINGS = 5


def text(directory: str) -> str:
    """A line of numbers, then the first findings, a line each."""
    report = judge(read(Path(directory)))
    count = len(report.findings)
    head = (
        f"hotfire: XLA: {report.compilations} compilations, {report.compile_seconds:.1f} s, "
        f"in {report.steps} steps; findings: {count or 'none'}"
    )
    lines = [head]
    for finding in report.findings[:_FINDINGS]:
        place = f"{finding.place}: " if finding.place else ""
        lines.append(f"hotfire:   {place}{finding.message} [{finding.rule}] Fix: {finding.fix}")
    if count > _FINDINGS:
        lines.append(f"hotfire:   and {count - _FINDINGS} more; hotfire doctor shows all")
    return "\n".join(lines)
