"""A training container to start for real: its /opt/ml in a temporary directory, its environment said in full."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import hotfire.runtime.errors

VIEW = Path(hotfire.runtime.errors.__file__).parents[2]
"""The directory to put on PYTHONPATH: it holds the package hotfire and nothing else."""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str
    failure: str
    """Text of output/failure, empty when there is none."""

    @property
    def talk(self) -> list[str]:
        """What ``train`` itself said, without its prefix."""
        lines = self.err.splitlines()
        return [line.removeprefix("hotfire: ") for line in lines if line.startswith("hotfire: ")]


@dataclass
class Container:
    """One container, not yet started."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    prefix: list[str] = field(default_factory=list)
    """Put before the command: unshare and the like."""
    python: str = sys.executable
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def ml(self) -> Path:
        return self.root / "ml"

    @property
    def code(self) -> Path:
        return self.ml / "code"

    @property
    def config(self) -> Path:
        return self.ml / "input" / "config"

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        """A file in the source directory."""
        path = self.code / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def configure(self, **values: Any) -> None:
        """Hyperparameters as the SDK sends them; a program is named for short."""
        self.hyperparameters |= {key: json.dumps(value) for key, value in values.items()}

    def hosts(self, *names: str, current: str = "algo-1", **more: Any) -> None:
        resources = {"hosts": list(names), "current_host": current, **more}
        (self.config / "resourceconfig.json").write_text(json.dumps(resources))

    def environment(self) -> dict[str, str]:
        common = {
            "PATH": f"{self.root / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(VIEW),
            "HOME": str(self.root / "home"),
            "SAGEMAKER_BASE_DIR": str(self.ml),
            "LANG": "C.UTF-8",
        }
        return {name: value for name, value in {**common, **self.env}.items() if value}

    def start(self, *argv: str, **popen: Any) -> subprocess.Popen[str]:
        (self.config / "hyperparameters.json").write_text(json.dumps(self.hyperparameters))
        command = [self.python, "-m", "hotfire.entrypoints.train", *(argv or ("train",))]
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process: subprocess.Popen[str] = subprocess.Popen(
            [*self.prefix, *command],
            env=self.environment(),
            cwd=self.root,
            text=True,
            start_new_session=True,
            **{"stdin": subprocess.DEVNULL, **streams, **popen},
        )
        self.started.append(process)
        return process

    def finish(self, process: subprocess.Popen[str], timeout: float = 60.0) -> Result:
        out, err = process.communicate(timeout=timeout)
        path = self.ml / "output" / "failure"
        failure = path.read_text() if path.exists() else ""
        return Result(process.returncode, out, err, failure)

    def run(self, *argv: str, timeout: float = 60.0, **popen: Any) -> Result:
        return self.finish(self.start(*argv, **popen), timeout)


def wait_for(condition: Callable[[], Any], what: str, timeout: float = 30.0) -> Any:
    """The first true answer of ``condition``."""
    end = time.monotonic() + timeout
    while not (answer := condition()):
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.02)
    return answer


def processes(*words: str) -> list[int]:
    """Ids of living processes with all ``words`` in their command lines or environments."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            if entry.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            text = entry.joinpath("cmdline").read_bytes() + entry.joinpath("environ").read_bytes()
            if all(word.encode() in text for word in words):
                found.append(int(entry.name))
    return found


@dataclass(frozen=True)
class Tools:
    """Helpers, handed out by fixture because test files do not import each other."""

    wait_for: Callable[..., Any] = wait_for
    processes: Callable[..., list[int]] = processes


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    """An empty container; whatever it leaves behind fails the test."""
    made = Container(tmp_path)
    for directory in (made.config, made.code, tmp_path / "bin", tmp_path / "home"):
        directory.mkdir(parents=True)
    yield made
    for process in made.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    mark = f"SAGEMAKER_BASE_DIR={made.ml}"
    left = processes(mark)
    for pid in left:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    assert not left, "processes outlived the container"
    shared = Path("/dev/shm")
    pids = {str(process.pid) for process in made.started}
    left_files = [path for path in shared.glob("hotfire-*") if pids & set(path.name.split("-"))]
    assert not left_files, "files outlived the container"


@pytest.fixture
def namespaces() -> list[str]:
    """The command that makes a program PID 1 of a namespace of its own."""
    prefix = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine refuses PID namespaces: {error}")
    return prefix
