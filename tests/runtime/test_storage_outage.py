"""S3 that goes away for a while, and S3 that accepts and never answers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime import s3_patience
from hotfire.runtime.daemon_pool import DaemonPool
from hotfire.runtime.download import Wanted, download
from hotfire.runtime.events import ignore
from hotfire.runtime.s3 import S3, S3Object
from hotfire.runtime.s3_stream import Blocks
from hotfire.runtime.s3_upload import upload
from hotfire.runtime.storage import S3Location

ROOT = Path(__file__).parents[2]
ONE = S3Object(bucket="b", key="k", size=5, etag="e")


class Bucket(ThreadingHTTPServer):
    """A bucket ``b`` with one object ``k``; requests that hold ``stalls`` are taken and never answered."""

    daemon_threads = True

    def __init__(self, port: int = 0, *, stalls: str = "") -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.stalls = stalls
        self.asked = threading.Event()
        self.over = threading.Event()
        self.stored = b""

    def handle_error(self, *_: Any) -> None:
        """Clients that hang up are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    server: Bucket
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        listing = b'<ListBucketResult><Contents><Key>k</Key><Size>5</Size><ETag>"e"</ETag></Contents></ListBucketResult>'
        listed = "list-type=2" in self.path
        if self.server.stalls and self.server.stalls in self.path:
            self.server.asked.set()
            self.server.over.wait()
            return
        body = listing if listed else b"12345"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"e"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        self.server.stored = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def serve(server: Bucket) -> threading.Thread:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    return thread


def end(server: Bucket, thread: threading.Thread) -> None:
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> int:
    """A port where nobody listens, as the endpoint of boto3's own chain."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for name, value in environment(port).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_MAX_ATTEMPTS", raising=False)
    return port


def environment(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
        # By the path and not by the host's name, which this machine would have to resolve.
        "AWS_S3_ADDRESSING_STYLE": "path",
    }


@pytest.mark.parametrize("how", ["file", "stream", "upload"])
def test_an_outage_longer_than_boto3s_patience(
    tmp_path: Path, endpoint: int, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    servers: list[tuple[Bucket, threading.Thread]] = []
    again = s3_patience.Patience.again
    failures = 0

    def counted(self: s3_patience.Patience, cause: BaseException | None) -> bool:
        nonlocal failures
        failures += 1
        if failures == 2:  # each of them three attempts of boto3's
            server = Bucket(endpoint)
            servers.append((server, serve(server)))
        return again(self, cause)

    monkeypatch.setattr(s3_patience.Patience, "again", counted)
    s3 = S3()
    (tmp_path / "source").write_bytes(b"12345")
    try:
        if how == "file":
            download(s3.client, [Wanted(ONE, tmp_path / "k")], ignore, "train")
            assert (tmp_path / "k").read_bytes() == b"12345"
        elif how == "stream":
            assert Blocks(s3, threading.Event()).get(ONE, 0, 5) == b"12345"
        else:
            upload(s3, [(tmp_path / "source", S3Location("b", "k"))], ignore, "artifact")
            assert b"12345" in servers[0][0].stored
        assert failures == 2
    finally:
        for server, thread in servers:
            end(server, thread)


SCRIPT = "print('the' + ' data is', open('/opt/ml/input/data/' + '$FILE', 'rb').read())"
OBJECT, LISTING = "/b/k", "prefix=kept"


@pytest.mark.parametrize(
    ("mode", "stalls", "how"),
    [
        ("File", OBJECT, "Ctrl-C"),
        ("FastFile", OBJECT, "Ctrl-C"),
        ("Pipe", OBJECT, "Ctrl-C"),
        ("restore", LISTING, "Ctrl-C"),
        ("restore", LISTING, "stop"),
        ("File", OBJECT, "stop"),
    ],
)
def test_a_stop_while_s3_stalls(tmp_path: Path, mode: str, stalls: str, how: str) -> None:
    server = Bucket(stalls=stalls)
    thread = serve(server)
    (tmp_path / "code").mkdir()
    file = "train_0" if mode == "Pipe" else "train/k"
    (tmp_path / "code" / "train.py").write_text(SCRIPT.replace("$FILE", file))
    words = ["--output", "out", "--name", "job"]
    if mode == "restore":
        words += ["--checkpoint-s3-uri", "s3://b/kept"]
    else:
        words += ["--input", "train=s3://b/", "--input-mode", f"train={mode}"]
    job = subprocess.Popen(
        [sys.executable, "-m", "hotfire.entrypoints", "run", "code/train.py", *words],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT / "build" / "view"),
            "HOTFIRE_HOME": str(tmp_path / "home"),
            **environment(server.server_port),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert server.asked.wait(60)
        if how == "stop":
            (tmp_path / "home" / "jobs" / "job" / "control" / "stop").touch()
        else:
            job.send_signal(signal.SIGINT)
        # boto3 itself asks for an answer for 30 s, three times.
        said, _ = job.communicate(timeout=25)
    finally:
        job.kill()
        job.wait()
        end(server, thread)
    assert "Stopped" in said
    assert "the data is" not in said


def test_a_pool_leaves_behind_what_does_not_end() -> None:
    pool, begun, release = DaemonPool(1, "test"), threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        release.wait()

    stuck, queued = pool.submit(wait), pool.submit(lambda: 1)
    begun.wait()
    assert not pool.close(0.01)
    for one in (stuck, queued):
        with pytest.raises(CancelledError):
            one.result(timeout=10)
    release.set()
    assert pool.close(10)
