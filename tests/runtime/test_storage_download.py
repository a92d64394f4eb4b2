"""Ranged, parallel, resumable downloads against a server that breaks connections on purpose."""

from __future__ import annotations

import base64
import fcntl
import os
import re
import threading
import zlib
from collections.abc import Iterator
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime import download, s3_patience
from hotfire.runtime.download import Wanted
from hotfire.runtime.errors import DataError
from hotfire.runtime.events import Event, Progress, ignore
from hotfire.runtime.s3 import S3Object


class Objects(ThreadingHTTPServer):
    """S3's GetObject for ``/bucket/key`` with ranges and If-Match, and faults that a test may switch on."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.asked: list[tuple[str, int, int]] = []
        self.break_after: int | None = None
        """Bytes of each body after which the connection goes."""
        self.breaks = 10**9
        self.refuse_from: int | None = None
        """Ranges that start here or later get 403."""
        self.checksum: str | None = None
        """Sent as the CRC32 of whole objects."""

    def client(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.session.Session().client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.server_port}",
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            config=Config(
                s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, read_timeout=10
            ),
        )

    def handle_error(self, *_: Any) -> None:
        """Clients that hang up are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: Objects
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        key = self.path.split("?")[0].removeprefix("/b/")
        data = self.server.objects[key]
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = (int(match[1]), int(match[2]) + 1) if match else (0, len(data))
        self.server.asked.append((key, start, end))
        if self.headers.get("If-Match") != f'"{md5(data).hexdigest()}"':
            return self._error(412, "PreconditionFailed")
        if self.server.refuse_from is not None and start >= self.server.refuse_from:
            return self._error(403, "AccessDenied")
        body = data[start:end]
        self.send_response(206 if match else 200)
        self.send_header("Content-Length", str(len(body)))
        if self.server.checksum is not None and match is None:
            self.send_header("x-amz-checksum-crc32", self.server.checksum)
        self.end_headers()
        if self.server.break_after is not None and self.server.breaks > 0:
            self.server.breaks -= 1
            body = body[: self.server.break_after]
            self.close_connection = True
        self.wfile.write(body)
        return None

    def _error(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Objects]:
    with Objects() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PART", 100_000)


def wanted(server: Objects, key: str, data: bytes, to: Path) -> Wanted:
    server.objects[key] = data
    etag = md5(data).hexdigest()
    return Wanted(S3Object(bucket="b", key=key, size=len(data), etag=etag), to / etag)


def test_parts_and_small_objects_together(tmp_path: Path, server: Objects) -> None:
    data = {"large": os.urandom(450_001), "small": b"x", "empty": b"", "edge": os.urandom(200_000)}
    todo = [wanted(server, key, content, tmp_path) for key, content in data.items()]
    events: list[Event] = []
    download.download(server.client(), todo, events.append, "train")
    for one in todo:
        assert one.target.read_bytes() == data[one.object.key]
    assert len(list(tmp_path.iterdir())) == 4
    assert sorted(start for key, start, _ in server.asked if key == "large") == [
        0,
        100_000,
        200_000,
        300_000,
        400_000,
    ]
    total = sum(map(len, data.values()))
    progress = [(event.done, event.total) for event in events if isinstance(event, Progress)]
    assert progress == sorted(progress)
    assert progress[-1] == (total, total)


def test_a_connection_that_breaks_goes_on_where_it_broke(tmp_path: Path, server: Objects) -> None:
    data = os.urandom(250_000)
    one = wanted(server, "k", data, tmp_path)
    server.break_after, server.breaks = 10_000, 4
    download.download(server.client(), [one], ignore, "train")
    assert one.target.read_bytes() == data
    assert {start % 100_000 for _, start, _ in server.asked} > {0}
    assert len(server.asked) == 3 + 4


def test_a_connection_that_never_works_fails_and_leaves_no_target(
    tmp_path: Path, server: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_patience, "_TRIES", 2)
    one = wanted(server, "k", b"x" * 1000, tmp_path)
    server.break_after = 0
    with pytest.raises(DataError, match="Data download failed: cannot download s3://b/k"):
        download.download(server.client(), [one], ignore, "train")
    assert not one.target.exists()


def test_a_wrong_checksum_fails(tmp_path: Path, server: Objects) -> None:
    one = wanted(server, "k", b"hello", tmp_path)
    server.checksum = base64.b64encode(zlib.crc32(b"hello").to_bytes(4, "big")).decode()
    download.download(server.client(), [one], ignore, "train")
    one.target.unlink()
    server.checksum = base64.b64encode(zlib.crc32(b"jello").to_bytes(4, "big")).decode()
    with pytest.raises(DataError, match=r"Data download failed: .*checksum"):
        download.download(server.client(), [one], ignore, "train")
    assert not one.target.exists()


def test_an_interrupted_download_fetches_only_the_rest(tmp_path: Path, server: Objects) -> None:
    data = os.urandom(1_000_000)
    one = wanted(server, "k", data, tmp_path)
    Path(f"{one.target}.parts").write_text("another-boot 100000\n1\n")
    server.refuse_from = 900_000
    with pytest.raises(DataError, match="access denied"):
        download.download(server.client(), [one], ignore, "train")
    assert not one.target.exists()
    journal = Path(f"{one.target}.parts").read_text().split()[2:]
    assert 0 < len(journal) < 10

    server.refuse_from = None
    server.asked.clear()
    events: list[Event] = []
    download.download(server.client(), [one], events.append, "train")
    assert one.target.read_bytes() == data
    assert len(server.asked) == 10 - len(journal)
    assert isinstance(events[-1], Progress)
    assert events[-1].done == 1_000_000
    assert list(tmp_path.iterdir()) == [one.target]


@pytest.mark.parametrize("journal", ["", "other-boot 100000\n0\n1\n", "garbage", "\n\n"])
def test_a_journal_that_cannot_be_trusted_is_ignored(
    journal: str, tmp_path: Path, server: Objects
) -> None:
    data = os.urandom(150_000)
    one = wanted(server, "k", data, tmp_path)
    Path(f"{one.target}.part").write_bytes(bytes(150_000))
    Path(f"{one.target}.parts").write_text(journal)
    download.download(server.client(), [one], ignore, "train")
    assert one.target.read_bytes() == data


def test_a_torn_last_line_does_not_count(tmp_path: Path, server: Objects) -> None:
    data = os.urandom(1_200_000)
    one = wanted(server, "k", data, tmp_path)
    Path(f"{one.target}.part").write_bytes(bytes(1_200_000))
    # "1" may be the start of "11": only a line with its end is a part's number.
    Path(f"{one.target}.parts").write_text(f"{download._boot()} 100000\n1")
    download.download(server.client(), [one], ignore, "train")
    assert one.target.read_bytes() == data


def test_two_at_once_do_not_disturb_each_other(tmp_path: Path, server: Objects) -> None:
    """Another process holds the partial file: ours goes to a name of its own."""
    data = os.urandom(150_000)
    one = wanted(server, "k", data, tmp_path)
    with Path(f"{one.target}.part").open("w") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        download.download(server.client(), [one], ignore, "train")
        assert one.target.read_bytes() == data
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [one.target.name, f"{one.target.name}.part"]
    )


def test_a_stop_in_the_middle_ends_the_workers(tmp_path: Path, server: Objects) -> None:
    todo = [wanted(server, f"k{n}", os.urandom(200_000), tmp_path) for n in range(40)]

    class Stop(BaseException):
        pass

    def stop(event: Event) -> None:
        raise Stop

    with pytest.raises(Stop):
        download.download(server.client(), todo, stop, "train")
    assert not [one for one in threading.enumerate() if one.name.startswith("download")]
    download.download(server.client(), todo, ignore, "train")
    for one in todo:
        assert one.target.read_bytes() == server.objects[one.object.key]
    assert len(list(tmp_path.iterdir())) == 40


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path, server: Objects) -> None:
    (tmp_path / "file").write_text("")
    one = wanted(server, "k", b"x", tmp_path / "file")
    with pytest.raises(DataError, match=r"Not a directory|File exists") as caught:
        download.download(server.client(), [one], ignore, "train")
    assert "HOTFIRE_CACHE" in caught.value.do
