"""A small laboratory for the process backend: real hosts in awkward places, and a count of what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from hotfire.runtime.backend import Attempt, ContainerSpec, Mount, MountMode
from hotfire.runtime.backends.container import ProcessContainer
from hotfire.runtime.backends.isolation import VARIABLE
from hotfire.runtime.backends.process import ProcessBackend, ProcessSession
from hotfire.runtime.events import Event, Note
from hotfire.runtime.layout import HostDir

MARK = "HOTFIRE_TEST_MARK"
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass
class Lab:
    """Opens sessions below ``root`` and remembers what they said. ``mark`` is in the environment of every host."""

    root: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    events: list[Event] = field(default_factory=list)
    serve: Callable[[socket.socket], None] | None = None
    sessions: int = 0
    homes: dict[ProcessSession, dict[str, HostDir]] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]

    @contextlib.contextmanager
    def open(
        self,
        *hosts: str,
        network: str = "host",
        isolated: bool = False,
        isolation: str = "namespace",
        job: str | None = None,
    ) -> Iterator[ProcessSession]:
        self.sessions += 1
        name = job or f"job-{self.sessions}"
        base = self.root / f"{name} {self.sessions}"
        dirs = {host: HostDir(base / host) for host in hosts or ("algo-1",)}
        attempt = Attempt(job=name, number=1, dirs=dirs, network=network, isolated=isolated)
        backend = ProcessBackend(
            environ={VARIABLE: isolation} if isolation else {}, serve=self.serve
        )
        with backend.open(attempt, self.events.append) as session:
            for directory in dirs.values():
                for path in directory.ml.directories():
                    path.mkdir(parents=True)
            self._dirs = self.homes[session] = dirs
            yield session

    def spec(
        self,
        session: ProcessSession,
        script: str | Sequence[str],
        *mounts: Mount,
        host: str = "algo-1",
        cwd: str = "/",
        env: dict[str, str] | None = None,
    ) -> ContainerSpec:
        argv = ("/bin/sh", "-c", script) if isinstance(script, str) else tuple(script)
        return ContainerSpec(
            job="job",
            host=host,
            hostname=f"ip-10-0-0-{host[-1]}.ec2.internal",
            argv=argv,
            cwd=cwd,
            env={"PATH": PATH, MARK: self.mark, **(env or {})},
            dir=self.homes[session][host],
            place=session.places[host],
            mounts=mounts,
        )

    def start(
        self,
        session: ProcessSession,
        script: str | Sequence[str],
        *mounts: Mount,
        host: str = "algo-1",
        cwd: str = "/",
        env: dict[str, str] | None = None,
    ) -> ProcessContainer:
        return session.start(self.spec(session, script, *mounts, host=host, cwd=cwd, env=env))

    def run(
        self,
        session: ProcessSession,
        script: str | Sequence[str],
        *mounts: Mount,
        host: str = "algo-1",
        env: dict[str, str] | None = None,
    ) -> tuple[int | None, str]:
        """Start a host, wait for its end; its exit code and its log."""
        container = self.start(session, script, *mounts, host=host, env=env)
        code = container.wait(30)
        log = self.homes[session][host].log
        text = log.read_text(errors="surrogateescape")
        log.unlink()
        container.remove()
        return code, text

    def directory(self, host: str = "algo-1") -> HostDir:
        """Of the session opened last."""
        return self._dirs[host]

    @staticmethod
    def until(what: Callable[[], object], seconds: float = 20) -> None:
        """Wait for something that must come true."""
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.01)

    def living(self) -> list[int]:
        """Every process of this machine that was started by a host of this laboratory."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """The laboratory; afterwards no process, mount, descriptor or scratch file of it may be there."""
    root = tmp_path / "a b,c:d\\e'\"é=f"
    root.mkdir()
    fds_before = _fds()
    laboratory = Lab(root)
    yield laboratory
    assert laboratory.living() == []
    assert _mounts(tmp_path) == []
    assert _fds() == fds_before
    assert list(root.glob("**/scratch")) == []


def _mounts(root: Path) -> list[str]:
    """Mounts of this machine that a host could have made: below the laboratory, or where hosts mount anything."""
    places = (str(root), "/opt/ml", "/etc/")
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if line.split()[4].startswith(places)]


def _fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (iterdir may be lazy, and holds one itself)


@dataclass
class Machine:
    """Another machine, as far as a host can tell: ``one_job.py`` in namespaces that a shell line has prepared."""

    lab: Lab

    def start(self, prepare: str, **job: Any) -> subprocess.Popen[str]:
        """``prepare`` runs as root of a user and a mount namespace and ends in ``exec``ing what follows it."""
        job = {
            "root": str(self.lab.root),
            "mark": {MARK: self.lab.mark},
            "hosts": ["algo-1"],
            **job,
        }
        driver = Path(__file__).with_name("one_job.py")
        python = [sys.executable, "-B", str(driver), json.dumps(job)]
        return subprocess.Popen(
            ["unshare", "-Urm", "sh", "-ec", prepare + ' "$@"', "sh", *python],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": PATH, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def run(self, prepare: str, **job: Any) -> dict[str, Any]:
        with self.start(prepare, **job) as process:
            text, _ = process.communicate(timeout=60)
        assert process.returncode == 0, text
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found


@pytest.fixture
def machine(lab: Lab) -> Machine:
    return Machine(lab)


@pytest.fixture
def mount() -> Callable[[Path, str, str], Mount]:
    def make(source: Path, target: str, mode: str) -> Mount:
        return Mount(source=source, target=PurePosixPath(target), mode=MountMode(mode))

    return make


@pytest.fixture
def data(lab: Lab) -> Path:
    """A channel's local data, under a name that nothing should have to quote."""
    source = lab.root / "my, data: x'y"
    (source / "sub").mkdir(parents=True)
    (source / "a.txt").write_text("alpha\n")
    (source / "sub" / "b.txt").write_text("beta\n")
    return source


# --- whole jobs in containers ------------------------------------------------------------------


class Desk:
    """A directory with a script and data, and the ``hotfire`` command."""

    def __init__(self, root: Path, environ: dict[str, str], image: str) -> None:
        self.root, self.image = root, image
        (root / "src").mkdir()
        (root / "data").mkdir()
        (root / "data" / "f").write_text("42")
        self.environ = {
            **environ,
            "PYTHONPATH": str(Path(__file__).parents[3] / "build" / "view"),
            "HOTFIRE_HOME": str(root / "home"),
            "HOTFIRE_CACHE": str(root / "cache"),
        }

    def script(self, text: str) -> None:
        (self.root / "src" / "s.py").write_text(text)

    def argv(self, *flags: str, image: str = "") -> list[str]:
        fixed = ("--source-dir", "src", "--backend", "docker", "--image", image or self.image)
        return [sys.executable, "-m", "hotfire.entrypoints", "run", "s.py", *fixed, *flags]

    def run(self, *flags: str, image: str = "") -> subprocess.CompletedProcess[str]:
        return self.call(self.argv("--output", str(self.root / "out"), *flags, image=image))

    def call(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.root,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    def members(self, name: str) -> list[str]:
        with tarfile.open(self.root / "out" / name / "output" / "model.tar.gz") as tar:
            return sorted(tar.getnames())


@pytest.fixture
def desk(docker_engine: dict[str, str], docker_train: str, tmp_path: Path) -> Iterator[Desk]:
    """Afterwards nothing of its jobs is on the engine."""
    yield Desk(tmp_path, docker_engine, docker_train)
    assert owned(docker_engine, tmp_path) == []


def owned(environ: dict[str, str], root: Path) -> list[str]:
    """Containers, networks and volumes of jobs below ``root``; others may use the same engine meanwhile."""
    from hotfire.containers.engine import connect

    with contextlib.closing(connect(environ)) as engine:
        found = engine.owned("hotfire.session")
    return [one.name for one in found if one.labels["hotfire.directory"].startswith(str(root))]
