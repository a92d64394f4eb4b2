"""Findings as SARIF 2.1.0, which code hosts show beside the lines of a change."""

from __future__ import annotations

from typing import Any

from hotfire.runtime.xla.doctor.findings import Finding
from hotfire.runtime.xla.doctor.report import Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def document(report: Report, prefix: str = "") -> dict[str, Any]:
    """One run with all findings; `prefix` leads from the repository's root to the source directory."""
    rules = sorted({finding.rule for finding in report.findings})
    driver = {
        "name": "hotfire doctor",
        "rules": [{"id": rule, "name": rule} for rule in rules],
    }
    results = [_result(finding, prefix, rules) for finding in report.findings]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _result(finding: Finding, prefix: str, rules: list[str]) -> dict[str, Any]:
    text = f"{finding.message}\nCost: {finding.cost}\nFix: {finding.fix}"
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": finding.severity.value,
        "message": {"text": text},
    }
    if finding.file:
        uri = f"{prefix}/{finding.file}" if prefix and prefix != "." else finding.file
        place = {"artifactLocation": {"uri": uri}, "region": {"startLine": finding.line}}
        result["locations"] = [{"physicalLocation": place}]
    return result
