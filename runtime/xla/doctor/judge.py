"""From the events of all ranks to a report (standard library only)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from hotfire.runtime.xla.doctor import graphs, rules_data, rules_graphs, rules_job, rules_replicas
from hotfire.runtime.xla.doctor.findings import Finding, Run, Severity
from hotfire.runtime.xla.doctor.report import Report
from hotfire.runtime.xla.doctor.sources import Sources
from hotfire.runtime.xla.doctor.timeline import Rank, site_of

RULES = (*rules_graphs.RULES, *rules_data.RULES, *rules_job.RULES, *rules_replicas.RULES)
_ORDER = list(Severity)


def judge(ranks: Sequence[Rank], source: Path | None = None) -> Report:
    """Apply every rule.

    Args:
        ranks: what `timeline.read` returned, of all hosts; not empty.
        source: the source directory on this machine; None: where the worker had it.
    """
    first = ranks[0]
    root = str(first.start.get("root", ""))
    files = [*first.end.get("files", ()), str(first.start.get("script", ""))]
    sources = Sources(root, source or Path(root or "."), tuple(dict.fromkeys(filter(None, files))))
    run = Run(ranks, sources, hyperparameters(first.start.get("argv", ())))
    found = [finding for rule in RULES for finding in rule(run)]
    budget = graphs.budget(run)
    return Report(
        findings=tuple(sorted(found, key=_importance)),
        graphs=tuple(budget),
        steps=int(first.end.get("opt", 0)),
        world_size=run.world_size,
        compilations=int(first.end.get("compilations", 0)),
        compile_seconds=float(first.end.get("compile_seconds", 0.0)),
        error=_error(run),
    )


def _error(run: Run) -> str:
    """What ended the script, and where: ``ValueError: no label (train.py:12)``; empty for nothing."""
    error = run.first.end.get("error")
    if not error:
        return ""
    file, line = run.sources.relative(site_of(error["site"]))
    place = f" ({file}:{line})" if file else ""
    return f"{error['type']}: {error['message'].strip().partition(chr(10))[0]}{place}"


def _importance(finding: Finding) -> tuple[int, str, int, str]:
    return _ORDER.index(finding.severity), finding.file, finding.line, finding.rule


def hyperparameters(argv: Sequence[str]) -> dict[str, str]:
    """``--name value`` and ``--name=value``, with underscores in the names."""
    found = {}
    for word, following in itertools.pairwise([*argv, ""]):
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            found[name.replace("-", "_")] = value if equals else following
    return found
