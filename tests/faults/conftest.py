"""What the fault matrix needs: one job that can be held in any phase, an S3 endpoint that can fail, small disks.

Nothing of hotfire is replaced by a stand-in: the command runs as a process of its own, against a real S3 API over HTTP.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NAME = "job"
PATIENCE = 120.0
"""Seconds that nothing takes, on however busy a machine."""
_NUMBERS = itertools.count(1)

# Two things of a supervisor have no handle outside: the few milliseconds before a host exists and after the upload, and
# its clock. FAULT_PAUSE=MODULE:FUNCTION:FILE makes the call of that function wait until FILE is gone (FILE.reached says
# that it waits); FAULT_CLOCK=FILE adds the seconds in FILE to every time of day; FAULT_PATIENCE shortens the minute for
# which the last flush of checkpoints goes on, and FAULT_GRACE the two minutes between SIGTERM and SIGKILL. The hosts never see any of it: they start with a bare environment.
SITE = r"""
import os, sys
if "hotfire.entrypoints" in sys.orig_argv and "run" in sys.orig_argv:
    if clock := os.environ.get("FAULT_CLOCK"):
        import datetime, time
        plain = time.time
        def shift():
            try:
                with open(clock) as text:
                    return float(text.read() or 0)
            except OSError:
                return 0.0
        class Shifted(datetime.datetime):
            @classmethod
            def now(cls, tz=None):
                return cls.fromtimestamp(plain() + shift(), tz)
        time.time = lambda: plain() + shift()
        datetime.datetime = Shifted
    if pause := os.environ.get("FAULT_PAUSE"):
        import importlib, time
        module, name, file = pause.split(":")
        found = importlib.import_module(module)
        function = getattr(found, name)
        def waiting(*args, **kwargs):
            open(file + ".reached", "w").close()
            while os.path.exists(file):
                time.sleep(0.02)
            return function(*args, **kwargs)
        setattr(found, name, waiting)
    if patience := os.environ.get("FAULT_PATIENCE"):
        from hotfire.runtime.sync import Sync
        Sync.__init__.__kwdefaults__["patience"] = float(patience)
    if grace := os.environ.get("FAULT_GRACE"):
        from hotfire.runtime.surroundings import Options
        Options.__init__.__kwdefaults__["grace"] = float(grace)
"""

# Saves a checkpoint and a model, and then trains until it is told to go on, to stop, or to do something silly.
SCRIPT = r"""
import os, resource, signal, sys, time
from pathlib import Path
stubborn = os.environ.get("SM_HP_STUBBORN")
signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else lambda *_: sys.exit(0))
me, go = os.environ["SM_CURRENT_HOST"], Path(os.environ["SM_HP_GO"])
assert Path(os.environ["SM_CHANNEL_TRAIN"], "x").read_bytes() == b"data"
if os.environ.get("LOCAL_RANK", "0") == "0":
    Path(os.environ["SM_MODEL_DIR"], "w-" + me).write_bytes(os.urandom(200_000))
    checkpoints = Path("/opt/ml/checkpoints")
    checkpoints.mkdir(exist_ok=True)
    (checkpoints / (".new-" + me)).write_bytes(os.urandom(100_000))
    (checkpoints / (".new-" + me)).rename(checkpoints / ("c-" + me))
print("training", flush=True)
while not go.exists():
    time.sleep(0.02)
order = go.read_text()
if order == "fill":
    with open("/opt/ml/model/more", "wb") as out:
        for _ in range(64):
            out.write(bytes(1 << 20))
            out.flush()
if order == "allocate":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    kept = bytearray(4 << 30)
"""


class Proxy:
    """TCP between a job and the S3 server: requests can be held, and the endpoint can go away and come back."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("http://").rsplit(":", 1)
        self._target = (host, int(port))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._needle = b""
        self._released = threading.Event()
        self.held = threading.Event()
        self._listener: socket.socket | None = None
        self._port = 0
        self.up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def hold(self, needle: bytes) -> None:
        """Requests that hold ``needle`` wait for :meth:`release`."""
        self._needle = needle
        self._released.clear()

    def release(self) -> None:
        self._needle = b""
        self._released.set()

    def up(self) -> None:
        if self._listener is None:
            self._listener = self._listen()
            self._port = self._listener.getsockname()[1]
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _listen(self) -> socket.socket:
        end = time.monotonic() + 60
        while True:
            try:
                return socket.create_server(("127.0.0.1", self._port))
            except OSError as error:
                # Meanwhile somebody else's connection may have been given the port.
                if error.errno != errno.EADDRINUSE or time.monotonic() > end:
                    raise
            time.sleep(0.1)

    def down(self) -> None:
        """Connections break, and new ones are refused."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self.release()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            threading.Thread(target=self._pass, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if request and self._needle and self._needle in data:
                    self.held.set()
                    self._released.wait()
                to.sendall(data)
        for one in (source, to):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {source, to}
        # Each side is closed by the thread that read it; the other may still be in its recv.
        source.close()


class Disk:
    """A small tmpfs: it can be filled to the last page, emptied again, and made read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        _mount(b"tmpfs", path, b"tmpfs", 0, b"size=700m")

    def fill(self) -> None:
        """Nothing fits any more: the file system shrinks to what it holds."""
        while True:
            used = os.statvfs(self.path)
            pages = used.f_blocks - used.f_bfree
            try:
                size = b"size=%d" % (max(1, pages) * 4096)
                return _mount(b"tmpfs", self.path, b"tmpfs", _REMOUNT, size)
            except OSError as refused:
                # A writer was faster: the kernel refuses a size below what is used by now.
                if refused.errno != errno.EINVAL:
                    raise

    def empty(self) -> None:
        _mount(b"tmpfs", self.path, b"tmpfs", _REMOUNT, b"size=700m")

    def read_only(self) -> None:
        _mount(b"tmpfs", self.path, b"tmpfs", _REMOUNT | _READ_ONLY, b"")

    def writable(self) -> None:
        _mount(b"tmpfs", self.path, b"tmpfs", _REMOUNT, b"")

    def close(self) -> None:
        _libc.umount2(os.fsencode(self.path), _DETACH)


class Veil:
    """A directory that nobody can write to by its name: it is mounted over itself, read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _mount(os.fsencode(path), path, b"", _BIND, b"")
        _mount(b"", path, b"", _BIND | _REMOUNT | _READ_ONLY, b"")

    def close(self) -> None:
        _libc.umount2(os.fsencode(self.path), _DETACH)


_libc = ctypes.CDLL(None, use_errno=True)
_READ_ONLY, _REMOUNT, _BIND, _DETACH = 1, 32, 4096, 2


def _mount(source: bytes, target: Path, kind: bytes, flags: int, data: bytes) -> None:
    if _libc.mount(source, os.fsencode(target), kind, flags, data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


@dataclass
class Rig:
    """One job, its surroundings, and what was there before it."""

    top: Path
    bucket: str
    client: Any
    proxy: Proxy
    env: dict[str, str]
    undo: contextlib.ExitStack
    output: str = ""
    checkpoints: str = ""
    hosts: int = 1
    workers: int = 1
    """Processes of the script on each host."""
    image: str = ""
    """The hosts are containers of it."""
    more: list[str] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    own: list[Path] = field(default_factory=list)
    """Mount points of the test's own."""
    at_start: Callable[[], None] | None = None
    """To be called once the job has been accepted and before its hosts start."""
    broken: str = ""
    """What the status was said to be while the fault lasted."""

    @property
    def home(self) -> Path:
        return Path(self.env["HOTFIRE_HOME"])

    @property
    def dir(self) -> Path:
        return self.home / "jobs" / NAME

    @property
    def go(self) -> Path:
        """Where the script's order is put: for a container where it is mounted."""
        if self.image:
            return self.dir / "attempts" / "1" / "algo-1" / "ml" / "output" / "go"
        return self.top / "go"

    def pause(self, module: str, function: str) -> None:
        file = self.top / "pause"
        file.touch()
        self.env["FAULT_PAUSE"] = f"{module}:{function}:{file}"

    def paused(self) -> bool:
        return (self.top / "pause.reached").exists()

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "hotfire.entrypoints", *words]

    def words(self) -> list[str]:
        return [
            *("run", "train.py", "--name", NAME, "--instance-count", str(self.hosts)),
            *("--input", f"train=s3://{self.bucket}/d/"),
            *("-p", "go=/opt/ml/output/go" if self.image else f"go={self.go}"),
            *(("--backend", "docker", "--image", self.image) if self.image else ()),
            *(("--processes-per-host", str(self.workers)) if self.workers > 1 else ()),
            *("--output", self.output or f"s3://{self.bucket}/out"),
            *("--checkpoint-s3-uri", self.checkpoints or f"s3://{self.bucket}/kept"),
            *self.more,
        ]

    def start(self, *words: str) -> None:
        """Start ``hotfire run``, or the command of ``words``."""
        out = self.undo.enter_context((self.top / "stdout").open("w"))
        err = self.undo.enter_context((self.top / "stderr").open("w"))
        self.process = subprocess.Popen(
            self.argv(*(words or self.words())),
            cwd=self.top / "cwd",
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
            start_new_session=True,
        )

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another command, from another terminal."""
        return subprocess.run(
            self.argv(*words),
            cwd=self.top / "cwd",
            env={k: v for k, v in self.env.items() if not k.startswith("FAULT_")},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def signal(self, number: int) -> None:
        """Send a signal to the command; returns once it has been taken, however busy the machine is."""
        assert self.process is not None
        self.process.send_signal(number)
        status = Path(f"/proc/{self.process.pid}/status")

        def taken() -> bool:
            pending = re.findall(r"^S\w+Pnd:\s*(\w+)$", status.read_text(), re.MULTILINE)
            return not any(int(mask, 16) >> (number - 1) & 1 for mask in pending)

        if number != signal.SIGKILL:
            self.until(taken, f"taking signal {number}")

    def stderr(self) -> str:
        return (self.top / "stderr").read_text()

    def stdout(self) -> str:
        return (self.top / "stdout").read_text()

    def until(
        self,
        condition: Callable[[], object],
        what: str | Callable[[], str],
        seconds: float = PATIENCE,
    ) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, (
                f"{what() if callable(what) else what} did not happen\n{self.stderr()}{self.stdout()}"
            )
            time.sleep(0.02)

    def end(self, seconds: float = PATIENCE) -> int:
        """Wait for the command; its exit code."""
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the command goes on\n{self.stderr()}{self.stdout()}") from None

    def train(self, host: str = "algo-1") -> int:
        """Process id, out here, of a host's first process."""
        path = self.dir / "attempts" / "1" / host / "pid"
        self.until(path.exists, "the host's start")
        self.until(lambda: path.read_text().strip(), "the host's process id")
        return int(path.read_text().split()[0])

    def disk(self, path: Path) -> Disk:
        try:
            made = Disk(path)
        except OSError as error:
            pytest.skip(f"this user may not mount a tmpfs: {error.strerror}")
        self.undo.callback(made.close)
        self.own.append(path)
        return made

    def veil(self, path: Path) -> Veil:
        try:
            made = Veil(path)
        except OSError as error:
            pytest.skip(f"this user may not mount a directory over itself: {error.strerror}")
        self.undo.callback(made.close)
        return made

    @property
    def labelled(self) -> tuple[str, str]:
        return "--filter", f"label=hotfire.directory={self.dir}/attempts/1"

    def docker(self, *words: str) -> list[str]:
        """The lines that the engine's own client answers."""
        done = subprocess.run(
            ["docker", *words], env=self.env, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    def objects(self) -> dict[str, int]:
        listed = self.client.list_objects_v2(Bucket=self.bucket).get("Contents", ())
        return {entry["Key"]: entry["Size"] for entry in listed}

    def left_behind(self) -> list[str]:
        """Processes, mounts, FIFOs, sockets and temporary files of this job that are still there."""
        found = [*_processes(os.fsencode(self.top)), *_mounts(os.fsencode(self.top))]
        found = [text for text in found if not any(f" {own} " in text for own in self.own)]
        if self.image:
            found += self.docker("ps", "-aq", *self.labelled)
            found += self.docker("network", "ls", "-q", *self.labelled)
        # A download that was cut short is kept in the cache on purpose: the next one goes on from it.
        trees = [self.top / name for name in ("home", "tmp", "cwd", "out", "kept")]
        for path in _everything(trees):
            try:
                kind = path.lstat().st_mode
            except FileNotFoundError:
                continue  # what is being cleared away is looked at again
            if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
                found.append(f"special file {path}")
            elif path.is_relative_to(self.top / "tmp") or _TEMPORARY.search(path.name):
                found.append(f"temporary {path}")
        return found


_TEMPORARY = re.compile(
    r"\.part$|\.parts$|^\.record\.json\.|^\.(new|gone)-(?!algo)|^\.hotfire-sync|^scratch$"
)


def _everything(trees: Sequence[Path]) -> Iterator[Path]:
    for tree in trees:
        for folder, directories, files in os.walk(tree):
            yield from (Path(folder, name) for name in (*directories, *files))


def _processes(needle: bytes) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            if needle in words + (entry / "environ").read_bytes():
                yield f"process {entry.name} {words!r}"


def _mounts(needle: bytes) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    return [f"mount {line!r}" for line in lines if needle in line]


@pytest.fixture
def rig(s3_server: Any, tmp_path: Path) -> Iterator[Rig]:
    client = s3_server.client()
    bucket = f"faults-{next(_NUMBERS)}"
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="d/x", Body=b"data")
    for name in ("cwd", "tmp", "site"):
        (tmp_path / name).mkdir()
    (tmp_path / "cwd" / "train.py").write_text(SCRIPT)
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    proxy = Proxy(s3_server.url)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT / 'build' / 'view'}",
        "HOTFIRE_HOME": str(tmp_path / "home"),
        "HOTFIRE_CACHE": str(tmp_path / "cache"),
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "2",
    }
    with contextlib.ExitStack() as undo:
        undo.callback(proxy.down)
        made = Rig(top=tmp_path, bucket=bucket, client=client, proxy=proxy, env=env, undo=undo)
        yield made
        if made.process is not None and made.process.poll() is None:
            made.process.send_signal(signal.SIGKILL)
            made.process.wait()
    client.close()
