"""The input data plane against what one would do by hand, each pair alternating in one run; medians of the ratios.

Pipe from local files against ``cat files > fifo`` (limit 1.0), with RecordIO against our own plain Pipe (0.9, for four
large files and for 10,000 of 10 KB), gunzip against ``zcat files > fifo`` (1.5); File mode from a local S3 server against ``aws s3 cp --recursive`` (1.5 for few large
objects, 1.0 for 1,000 small ones; left out where there is no ``aws``); the start of a 10 GB local File channel (50 ms);
the shards of 1,000,000 keys over 64 hosts (2 s). Ratios above 1 are in our favour.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotfire.runtime.channels import materialise, plan_inputs
from hotfire.runtime.events import ignore
from hotfire.runtime.layout import HostDir
from hotfire.runtime.s3 import S3
from hotfire.runtime.sharding import Assignment
from hotfire.runtime.spec import (
    AlgorithmSpecification,
    Channel,
    InputMode,
    InstanceGroup,
    OutputDataConfig,
    ResourceConfig,
    S3DataSource,
    TrainingJob,
)
from hotfire.runtime.storage import Locations

SERVER = Path(__file__).parent / "data_server.py"


def job(channel: Channel) -> TrainingJob:
    group = InstanceGroup(
        instance_group_name="g", instance_type="local", instance_count=1, hosts=("algo-1",)
    )
    return TrainingJob(
        training_job_name="bench",
        role_arn="arn:aws:iam::000000000000:role/hotfire",
        region="us-east-1",
        algorithm_specification=AlgorithmSpecification(training_image="hotfire"),
        output_data_config=OutputDataConfig(s3_output_path="file:///tmp/out"),
        resource_config=ResourceConfig(instance_groups=(group,)),
        input_data_config=(channel,),
    )


def planned(folder: Path, uri: str, s3: S3 | None = None, **fields: Any) -> Any:
    channel = Channel(channel_name="c", data_source=S3DataSource(s3_uri=uri), **fields)
    (one,) = plan_inputs(job(channel), Locations(), folder / "stage", folder / "cache", s3=s3)
    return one


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def reading(fifo: Path) -> float:
    """Seconds until a reader in another process has all of it; both sides of a pair are read by this."""
    with Path(os.devnull).open("wb") as nowhere:
        return seconds(lambda: subprocess.run(["cat", fifo], stdout=nowhere, check=True))


def by_hand(folder: Path, program: str, files: list[Path]) -> float:
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    writer = subprocess.Popen(["sh", "-c", f'exec {program} "$@" > "$0"', fifo, *files])
    try:
        return reading(fifo)
    finally:
        writer.wait()
        fifo.unlink()


def by_pipe(folder: Path, source: Path, **fields: Any) -> float:
    one = planned(folder, source.as_uri(), input_mode=InputMode.PIPE, **fields)
    host = HostDir(folder / "host")
    with materialise([one], ignore, {"algo-1": host}):
        return reading(host.ml.data / "c_0")


def compared(theirs: Callable[[], float], ours: Callable[[], float], repeats: int) -> float:
    theirs(), ours()
    return round(statistics.median(theirs() / ours() for _ in range(repeats)), 2)


def pipes(folder: Path, megabytes: int, repeats: int) -> dict[str, float]:
    plain, packed = folder / "plain", folder / "packed"
    plain.mkdir()
    packed.mkdir()
    text = b"".join(b"%d,%f\n" % (n, random.Random(n).random()) for n in range(200_000))
    for number in range(4):
        data = text * (megabytes * 250_000 // len(text) + 1)
        (plain / f"{number}.csv").write_bytes(data)
        (packed / f"{number}.csv.gz").write_bytes(gzip.compress(data[: len(data) // 4], 6))
    images = folder / "images"
    images.mkdir()
    for number in range(10_000):
        (images / f"{number}.jpg").write_bytes(os.urandom(10_001))
    files, zipped = sorted(plain.iterdir()), sorted(packed.iterdir())

    def ours(source: Path = plain) -> float:
        return by_pipe(folder, source)

    def records(source: Path = plain) -> float:
        return by_pipe(folder, source, record_wrapper_type="RecordIO")

    return {
        "pipe_against_cat": compared(lambda: by_hand(folder, "cat", files), ours, repeats),
        "recordio_against_pipe": compared(ours, records, repeats),
        "recordio_against_pipe_small": compared(
            lambda: ours(images), lambda: records(images), repeats
        ),
        "gunzip_against_zcat": compared(
            lambda: by_hand(folder, "zcat", zipped),
            lambda: by_pipe(folder, packed, compression_type="Gzip"),
            repeats,
        ),
    }


def downloads(folder: Path, megabytes: int, repeats: int) -> dict[str, float]:
    """File mode from a server that answers ranges by sendfile; the same server for both."""
    if shutil.which("aws") is None:
        return {}
    root = folder / "bucket"
    for name, count, size in (("large", 4, megabytes << 18), ("small", 1000, 10_000)):
        (root / name).mkdir(parents=True)
        for number in range(count):
            (root / name / f"{number:04}").write_bytes(os.urandom(size))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, SERVER, root, str(port)])
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    os.environ.update(env)

    def theirs(name: str) -> float:
        words = ["aws", "s3", "cp", "--recursive", "--quiet", f"s3://bucket/{name}/"]
        with tempfile.TemporaryDirectory(dir=folder) as to:
            return seconds(lambda: subprocess.run([*words, to], env=env, check=True))

    def ours(name: str) -> float:
        with tempfile.TemporaryDirectory(dir=folder) as to:
            words = [sys.executable, __file__, "--download", name, to]
            return seconds(lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL))

    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        return {
            f"{name}_objects_against_aws": compared(
                lambda name=name: theirs(name), lambda name=name: ours(name), repeats
            )
            for name in ("large", "small")
        }
    finally:
        server.kill()
        server.wait()


def download(name: str, folder: Path) -> None:
    """One File channel, in a process of its own as ``aws`` is."""
    with materialise([planned(folder, f"s3://bucket/{name}/")], ignore):
        pass


def start(folder: Path) -> float:
    """Milliseconds to plan and materialise a 10 GB local File channel of 1,000 files."""
    source = folder / "ten"
    source.mkdir()
    for number in range(1000):
        with (source / f"{number}").open("wb") as out:
            out.truncate(10_000_000)

    def begin() -> None:
        one = planned(folder, source.as_uri())
        with materialise([one], ignore):
            one.mounts("algo-1")

    return round(1000 * statistics.median(seconds(begin) for _ in range(5)), 2)


def shards() -> float:
    hosts = tuple(f"algo-{n + 1}" for n in range(64))
    one = Assignment(units=1_000_000, hosts=hosts, sharded=True)
    keys = [f"train/part-{n:07}.rec" for n in range(1_000_000)]
    return round(seconds(lambda: [[keys[n] for n in one.order(host)] for host in hosts]), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--download", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.download:
        download(options.download[0], Path(options.download[1]))
        return
    with tempfile.TemporaryDirectory(prefix="hotfire-bench-") as name:
        folder = Path(name)
        figures: dict[str, float] = {
            "start_10_gb_ms": start(folder),
            "shards_1000000_keys_64_hosts_s": shards(),
            # These last a tenth of a second, in which a busy machine does anything.
            **pipes(folder, options.megabytes, 3 * options.repeats),
            **downloads(folder, options.megabytes, options.repeats),
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
