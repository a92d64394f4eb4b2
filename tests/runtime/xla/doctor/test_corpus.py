"""Each planted fault is found, on its line, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime.xla.doctor.conftest import CORPUS, Case

pytestmark = [pytest.mark.xla, pytest.mark.slow]


@pytest.mark.parametrize("name", sorted(path.stem for path in CORPUS.glob("*.py")))
def test_planted_faults_are_found_and_nothing_else(examine: Callable[..., Any], name: str) -> None:
    outcome = examine(name)
    case = Case(CORPUS / f"{name}.py")
    planted = case.planted
    fails = "fails" in case.settings
    assert all(bool(code) is fails for code in outcome.codes), outcome.log[-3000:]
    assert outcome.found == planted, f"{outcome.report.text()}\n{outcome.log[-3000:]}"
