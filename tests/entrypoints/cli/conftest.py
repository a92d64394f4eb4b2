"""The command line as a user runs it: a process of its own, with a job store below the test's directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@dataclass
class Hotfire:
    """Runs ``hotfire`` in ``cwd``; the environment is a bare one."""

    cwd: Path
    env: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return Path(self.env["HOTFIRE_HOME"])

    def argv(self, *words: str | Path) -> list[str]:
        return [sys.executable, "-m", "hotfire.entrypoints", *map(str, words)]

    def __call__(self, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words),
            cwd=self.cwd,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.argv(*words),
            cwd=self.cwd,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def script(self, text: str, name: str = "train.py") -> Path:
        path = self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def retried(self, name: str) -> None:
        """``job.json``: train.py with checkpoints in ``kept``, tried once more if its supervisor is lost."""
        document = {
            "TrainingJobName": name,
            "RoleArn": "arn:aws:iam::123456789012:role/r",
            "AlgorithmSpecification": {"TrainingImage": "hotfire", "TrainingInputMode": "File"},
            "HyperParameters": {"sagemaker_program": "train.py"},
            "OutputDataConfig": {"S3OutputPath": f"file://{self.cwd}/out"},
            "CheckpointConfig": {"S3Uri": f"file://{self.cwd}/kept"},
            "ResourceConfig": {"InstanceType": "local", "InstanceCount": 1, "VolumeSizeInGB": 1},
            "StoppingCondition": {"MaxRuntimeInSeconds": 600},
            "RetryStrategy": {"MaximumRetryAttempts": 1},
        }
        (self.cwd / "job.json").write_text(json.dumps(document))

    def describe(self, name: str) -> dict[str, Any]:
        described: dict[str, Any] = json.loads(self("describe", name, "--json").stdout)
        return described


@pytest.fixture
def hotfire(tmp_path: Path) -> Iterator[Hotfire]:
    cwd = tmp_path / "my project é"
    cwd.mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT / "build" / "view"),
        "HOTFIRE_HOME": str(tmp_path / "home"),
        "HOTFIRE_CACHE": str(tmp_path / "cache"),
    }
    made = Hotfire(cwd=cwd, env=env)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Waits until something is true, and fails after a time that no machine should need."""

    def wait(condition: Callable[[], object], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.05)

    return wait


@pytest.fixture
def traces() -> Callable[[Path], list[str]]:
    """Processes and mounts of this machine that mention a directory."""

    def find(directory: Path) -> list[str]:
        needle = os.fsencode(directory)
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if needle in text:
                found.append(f"process {entry.name}")
        mounts = Path("/proc/self/mountinfo").read_bytes()
        escaped = needle.replace(b" ", rb"\040")
        return found + ["mount"] * (escaped in mounts)

    return find


@pytest.fixture
def supervisors(hotfire: Hotfire) -> Callable[[], list[int]]:
    """Process ids of the supervisors of the test's detached jobs."""

    def find() -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if b"hotfire.runtime.supervisor" in words and os.fsencode(hotfire.home) in environ:
                found.append(int(entry.name))
        return found

    return find
