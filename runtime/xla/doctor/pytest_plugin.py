"""A pytest fixture that runs ``hotfire doctor``.

::

    # conftest.py
    pytest_plugins = ["hotfire.runtime.xla.doctor.pytest_plugin"]

    # test_training.py
    def test_no_findings(hotfire_doctor):
        report = hotfire_doctor("train.py", "--input", "train=data/train", budget="budget.json")
        assert not report.failing, report.text()
        assert not report.change, report.change  # "this change adds 3 graphs (2 -> 5)"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hotfire.runtime.xla.doctor.report import Report

_PACKAGES = Path(__file__).absolute().parents[4]


@pytest.fixture
def hotfire_doctor(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Report]:
    """``hotfire_doctor(script, *flags, steps=20, budget=None)``: the report of a run.

    Paths are relative to pytest's root directory, which also holds the budget file; a missing one
    is made. A job that fails fails the test, with the end of its log.
    """

    def run(script: str | Path, *flags: str, steps: int = 20, budget: str | None = None) -> Report:
        command = [sys.executable, "-m", "hotfire.entrypoints", "doctor", str(script), "--json"]
        command += ["--steps", str(steps), *flags, *(["--budget", budget] if budget else [])]
        paths = [str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            command,
            cwd=request.config.rootpath,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "HOTFIRE_HOME": str(tmp_path / "hotfire"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.fail(f"hotfire doctor {script} ended with {done.returncode}\n{done.stderr}")
        return Report.from_json(json.loads(done.stdout))

    return run
