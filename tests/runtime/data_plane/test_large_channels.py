"""Ten thousand objects, and one of 5 GB in constant memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.data import recordio

SIZE = 5_000_000_000
ALLOWED = 32 << 20
ROOT = Path(__file__).parents[3]

# Feeds one channel of one host, and reports its own memory: first when it waits for a reader, then at the end.
FEEDER = """
import resource, sys
from pathlib import Path
from hotfire.runtime.channels import materialise, plan_inputs
from hotfire.runtime.events import ignore
from hotfire.runtime.layout import HostDir
from hotfire.runtime.spec import *
from hotfire.runtime.storage import Locations

root, uri, wrapper = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
group = InstanceGroup(instance_group_name="g", instance_type="local", instance_count=1, hosts=("algo-1",))
channel = Channel(channel_name="c", data_source=S3DataSource(s3_uri=uri), input_mode=InputMode.PIPE,
                  record_wrapper_type=wrapper)
job = TrainingJob(
    training_job_name="j", role_arn="arn:aws:iam::000000000000:role/x", region="us-east-1",
    algorithm_specification=AlgorithmSpecification(training_image="hotfire"),
    output_data_config=OutputDataConfig(s3_output_path="file:///tmp/out"),
    resource_config=ResourceConfig(instance_groups=(group,)), input_data_config=(channel,))
inputs = plan_inputs(job, Locations(), root / "stage", root / "cache")
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
with materialise(inputs, ignore, {"algo-1": HostDir(root)}) as feeds:
    print(peak(), flush=True)
    sys.stdin.readline()
    feeds.check()
    print(peak(), flush=True)
"""


class Zeros(BaseHTTPRequestHandler):
    """A bucket of one object of zeros, which exists only as it is sent: a server that held it could not be told apart."""

    protocol_version = "HTTP/1.1"
    block = bytes(1 << 20)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if "list-type=2" in self.path:
            text = (
                '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Contents><Key>z</Key>'
                f'<Size>{SIZE}</Size><ETag>"e"</ETag></Contents></ListBucketResult>'
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            return
        start, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        end = min(end, SIZE - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end}/{SIZE}")
        self.send_header("ETag", '"e"')
        self.send_header("Content-Length", str(end - start + 1))
        self.end_headers()
        left = end - start + 1
        while left:
            left -= self.wfile.write(self.block[:left])


@pytest.fixture
def zeros(s3_environ: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Zeros)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    yield "s3://bucket/z"
    server.shutdown()
    thread.join()
    server.server_close()


def streamed(root: Path, uri: str, wrapper: str = "None") -> tuple[int, int, int]:
    """Bytes that a reader got of one epoch, and the feeder's memory before and after."""
    feeder = subprocess.Popen(
        [sys.executable, "-c", FEEDER, str(root), uri, wrapper],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "build" / "view")},
    )
    assert feeder.stdin is not None
    assert feeder.stdout is not None
    with feeder:
        idle = int(feeder.stdout.readline())
        count, buffer = 0, bytearray(1 << 20)
        with (root / "ml" / "input" / "data" / "c_0").open("rb", buffering=0) as stream:
            while got := stream.readinto(buffer):
                count += got
        feeder.stdin.write("\n")
        feeder.stdin.flush()
        after = int(feeder.stdout.readline())
    return count, idle, after


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["None", "RecordIO"])
def test_a_local_file_of_5_gb(tmp_path: Path, wrapper: str) -> None:
    with (tmp_path / "z").open("wb") as out:
        out.truncate(SIZE)
    count, idle, after = streamed(tmp_path, (tmp_path / "z").as_uri(), wrapper)
    parts = recordio.parts(SIZE)
    overhead = sum(8 + len(recordio.padding(length)) for _, length in parts)
    assert count == SIZE + (overhead if wrapper == "RecordIO" else 0)
    assert after - idle <= ALLOWED


@pytest.mark.extended
@pytest.mark.slow
def test_an_object_of_5_gb(tmp_path: Path, zeros: str) -> None:
    count, idle, after = streamed(tmp_path, zeros)
    assert count == SIZE
    # The client for S3 was made for the listing already: it is part of the idle feeder.
    assert after - idle <= ALLOWED


@pytest.mark.extended
@pytest.mark.slow
def test_ten_thousand_small_objects(plane: Any, feed: Any, s3_bucket: str) -> None:
    from moto.backends import get_backend
    from moto.core import DEFAULT_ACCOUNT_ID

    names = [f"many/{n:05} ü" for n in range(10_000)]
    bucket = get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"]
    for name in names:  # past HTTP: what is tested is reading
        bucket.put_object(s3_bucket, name, name.encode())
    pipe = plane.plan(f"s3://{s3_bucket}/many/", record_wrapper_type="RecordIO")
    file = plane.plan(f"s3://{s3_bucket}/many/", "File", name="f", hosts=2, sharded=True)
    assert "10000 objects of" in " ".join(file.notes)
    feed(pipe)
    with (plane.data() / "train_0").open("rb") as stream:
        records = recordio.read(stream)
        assert [next(records).decode() for _ in range(1000)] == names[:1000]
    feed(file)
    found = [
        path.read_text()
        for host in ("algo-1", "algo-2")
        for path in file.mounts(host)[0].source.iterdir()
    ]
    assert sorted(found) == names
