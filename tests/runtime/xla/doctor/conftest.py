"""The corpus runner: scripts in forks of one process, and the judge over what they left."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.xla.doctor.judge import judge
from hotfire.runtime.xla.doctor.report import Report
from hotfire.runtime.xla.doctor.timeline import read

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
CORPUS = HERE / "corpus"
_HEADER = re.compile(r"^# (workers|argv|shims|fails|steps): (.*)$", re.MULTILINE)
_PLANTED = re.compile(r"# doctor: ([\w-]+)")


@dataclass(frozen=True)
class Case:
    """A script of the corpus; comments in it say how it is run and what is wrong with it."""

    path: Path

    @property
    def settings(self) -> dict[str, str]:
        return dict(_HEADER.findall(self.path.read_text()))

    @property
    def planted(self) -> set[tuple[str, int]]:
        lines = self.path.read_text().splitlines()
        return {(m[1], n) for n, line in enumerate(lines, 1) for m in _PLANTED.finditer(line)}


@dataclass(frozen=True)
class Outcome:
    report: Report | None
    """None for a summary, which is in the log."""
    codes: list[int]
    log: str

    @property
    def found(self) -> set[tuple[str, int]]:
        assert self.report is not None
        return {(finding.rule, finding.line) for finding in self.report.findings}


class Zygote:
    """See `zygote`."""

    def __init__(self) -> None:
        drop = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "HOTFIRE_", "SM_", "PT_XLA_")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment
            | {"PYTHONPATH": str(ROOT / "build" / "view"), "PJRT_DEVICE": "CPU"}
            | {"OMP_NUM_THREADS": "1", "USE_TORCH_XLA": "1"},
        )

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def run(
        self, script: Path, directory: Path, *, steps: int | str = 20, **settings: str
    ) -> Outcome:
        """Run `script` in the workers its header asks for and judge what they left.

        Without `steps` it runs as in `hotfire run`, to its own end.
        """
        assert self._process.stdin and self._process.stdout
        world = {"SM_OUTPUT_DATA_DIR": str(directory), "HOTFIRE_WORKER_DIR": str(directory)}
        if int(steps):
            world["HOTFIRE_DOCTOR"] = str(steps)
        if "shims" in settings:
            world["HOTFIRE_SHIMS"] = settings["shims"]
        log = directory / "log"
        request = {
            "argv": [str(script), *settings.get("argv", "").split()],
            "environments": [world | rank for rank in _ranks(int(settings.get("workers", 1)))],
            "log": str(log),
            "cwd": str(directory),
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        codes = json.loads(self._process.stdout.readline())
        text = log.read_text(errors="replace") if log.exists() else ""
        if not int(steps):
            return Outcome(None, codes, text)
        ranks = read(directory / "doctor")
        assert ranks, text
        return Outcome(judge(ranks), codes, text)


def _ranks(count: int) -> list[dict[str, str]]:
    if count == 1:
        return [{}]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_PORT": port}
    return [
        world | {"RANK": str(n), "LOCAL_RANK": str(n), "MASTER_ADDR": "127.0.0.1"}
        for n in range(count)
    ]


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()


@pytest.fixture
def examine(zygote: Zygote, tmp_path: Path) -> Callable[..., Outcome]:
    """Run a script of the corpus, or one given as text."""

    def run(name: str, text: str = "", **settings: Any) -> Outcome:
        path = CORPUS / f"{name}.py"
        if text:
            path = tmp_path / f"{name}.py"
            path.write_text(text)
        return zygote.run(path, tmp_path, **{**Case(path).settings, **settings})

    return run
