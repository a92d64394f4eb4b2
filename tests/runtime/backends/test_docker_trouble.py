"""An engine of our own, which may come to harm: restarted in the middle, killed, without space. Nothing is left behind."""

from __future__ import annotations

import gc
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hotfire.runtime.backend import Attempt, ContainerSpec
from hotfire.runtime.backends.docker import DockerBackend, DockerSession
from hotfire.runtime.errors import PlatformError, ResourceLimitExceeded
from hotfire.runtime.events import Event, Note
from hotfire.runtime.layout import HostDir

pytestmark = [pytest.mark.docker, pytest.mark.slow]
IMAGE = "hotfire-test/tiny:latest"


def until(condition: object, seconds: float = 60) -> None:
    """Wait for something that must come true."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.05)


def gone(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@dataclass
class OwnEngine:
    """A dockerd beside the machine's: its files are below ``root``, its networks in a namespace, for it removes docker0."""

    root: Path
    events: list[Event] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "DOCKER_HOST": f"unix://{self.root}/sock"}

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]

    def start(self) -> None:
        flags = ["--data-root", "data", "--exec-root", "exec", "--pidfile", "pid"]
        words = [word if word.startswith("--") else f"{self.root}/{word}" for word in flags]
        words += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-masq=false"]
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["unshare", "--net", "dockerd", "-H", f"unix://{self.root}/sock", *words],
                stdout=log,
                stderr=log,
            )
        until(self._answers)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.root / "log").read_text()[-2000:]
        done = subprocess.run(
            ["docker", "version"], env=self.environ, capture_output=True, check=False
        )
        return done.returncode == 0

    def end(self, *, kill: bool = False) -> None:
        assert self.process is not None
        if not kill:
            self.process.terminate()
            self.process.wait(150)
            return
        inner = self.root / "exec" / "containerd" / "containerd.pid"
        child = inner.read_text()
        self.process.kill()
        self.process.wait(150)
        until(lambda: gone(child))  # it goes with its parent, and holds a lock until then
        # The next one would take a process that nobody has reaped yet for one that runs.
        for path in (inner, self.root / "pid"):
            path.unlink(missing_ok=True)

    def run(self, *words: str, data: bytes = b"") -> str:
        done = subprocess.run(
            ["docker", *words], input=data, env=self.environ, capture_output=True, check=True
        )
        return done.stdout.decode()

    def session_spec(
        self, session: DockerSession, folder: Path, script: str, host: str = "algo-1"
    ) -> ContainerSpec:
        return ContainerSpec(
            job="job",
            host=host,
            hostname="ip-10-1-2-3.ec2.internal",
            image=IMAGE,
            entrypoint=("/bin/sh",),
            argv=("-c", script),
            env={"PATH": "/bin"},
            dir=HostDir(folder / host),
            place=session.places[host],
        )

    def attempt(self, folder: Path, *hosts: str) -> Attempt:
        dirs = {host: HostDir(folder / host) for host in hosts}
        for directory in dirs.values():
            for path in directory.ml.directories():
                path.mkdir(parents=True, exist_ok=True)
        return Attempt(job="job", number=1, dirs=dirs)

    @property
    def backend(self) -> DockerBackend:
        return DockerBackend(environ=self.environ)


def tiny(programs: Sequence[str]) -> bytes:
    """A tar file of an image that holds these programs of this machine, as /bin/*, and the libraries that they need."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", dereference=True) as tar:
        for name in programs:
            path = shutil.which(name, path="/usr/bin:/bin")
            assert path is not None
            tar.add(path, arcname=f"bin/{name}")
            listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True)
            for word in listed.stdout.split():
                if word.startswith("/") and word.lstrip("/") not in tar.getnames():
                    tar.add(word, arcname=word.lstrip("/"))
    return out.getvalue()


@pytest.fixture
def own(docker_engine: dict[str, str]) -> Iterator[OwnEngine]:
    """``docker_engine`` has installed what this needs. Afterwards there is nothing of ours on the engine."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("an engine of one's own needs root, and dockerd on this machine")
    root = Path(tempfile.mkdtemp(prefix="hotfire-", dir="/tmp"))  # sockets have short names
    engine = OwnEngine(root)
    try:
        engine.start()
        engine.run("import", "-", IMAGE, data=tiny(["sh", "sleep", "dd", "cat"]))
        yield engine
        assert engine.run("ps", "-aq") == ""
        assert engine.run("volume", "ls", "-q") == ""
        assert engine.run("network", "ls", "-q", "--filter", "type=custom") == ""
    finally:
        engine.end()
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in reversed([one for one in mounts if one.startswith(str(root))]):
            subprocess.run(["umount", mount], check=True)
        shutil.rmtree(root)


# The SDK leaves the socket of a question that was cut off to the garbage collector.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("kill", [False, True])
def test_an_engine_that_is_started_again_in_the_middle(
    own: OwnEngine, tmp_path: Path, kill: bool
) -> None:
    """It ends its containers, when it goes or when it comes; the host says so, with the engine's code."""
    attempt = own.attempt(tmp_path, "algo-1")
    with own.backend.open(attempt, own.events.append) as session:
        spec = own.session_spec(session, tmp_path, "echo up; sleep 600; exit 9")
        container = session.start(spec)
        until(lambda: spec.dir.log.exists() and spec.dir.log.read_text() == "up\n")
        own.end(kill=kill)
        own.start()
        code = container.wait(120)
    gc.collect()
    assert code in ((137, 143) if kill else (143,))
    if kill:  # else it has told the code before it went
        assert any("stopped answering" in note or "stopped waiting" in note for note in own.notes)


def test_a_name_that_is_taken(own: OwnEngine, tmp_path: Path) -> None:
    attempt = own.attempt(tmp_path, "algo-1")
    with own.backend.open(attempt, own.events.append) as session:
        name = session._called("algo-1")
        own.run("create", "--name", name, IMAGE, "/bin/sh")
        with pytest.raises(PlatformError, match=name):
            session.start(own.session_spec(session, tmp_path, "true"))
        # Whoever has made it keeps it.
        own.run("rm", name)


def test_a_full_disk_below_opt_ml(own: OwnEngine, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=True)
    try:
        attempt = own.attempt(folder, "algo-1")
        with own.backend.open(attempt, own.events.append) as session:
            script = "dd if=/dev/zero of=/opt/ml/model/x bs=1M && exit 3"
            container = session.start(own.session_spec(session, folder, script))
            assert container.wait(60) == 1
            assert (folder / "algo-1" / "ml" / "model" / "x").stat().st_size > 7 << 20
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_of_the_engine(own: OwnEngine, tmp_path: Path) -> None:
    """A host fills it; the next one cannot be made, and both are gone afterwards."""
    own.end()
    size = "size=48m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", own.root / "data"], check=True)
    own.start()
    own.run("import", "-", IMAGE, data=tiny(["sh", "sleep", "dd", "cat"]))
    attempt = own.attempt(tmp_path, "algo-1", "algo-2")
    with own.backend.open(attempt, own.events.append) as session:
        fill = (
            "dd if=/dev/zero of=/fill bs=64k; dd if=/dev/zero of=/rest bs=1; echo full; sleep 600"
        )
        first = own.session_spec(session, tmp_path, fill)
        session.start(first)
        until(lambda: first.dir.log.exists() and "full" in first.dir.log.read_text())
        with pytest.raises(ResourceLimitExceeded, match="disk is full"):
            session.start(own.session_spec(session, tmp_path, "true", "algo-2"))
