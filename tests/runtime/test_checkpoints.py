"""Restoring, and the two kinds of destination."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.checkpoints import restore
from hotfire.runtime.copies import copy_exactly
from hotfire.runtime.destinations import destination
from hotfire.runtime.errors import DataError
from hotfire.runtime.events import Event, Note, Progress, ignore
from hotfire.runtime.s3 import S3
from hotfire.runtime.storage import LocalLocation, S3Location
from hotfire.runtime.sync import Sync
from hotfire.runtime.synced import Abandoned, Changed
from hotfire.runtime.uploads import Uploads


def keys(client: Any, bucket: str) -> dict[str, bytes]:
    found = client.list_objects_v2(Bucket=bucket).get("Contents", ())
    return {
        one["Key"]: client.get_object(Bucket=bucket, Key=one["Key"])["Body"].read() for one in found
    }


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_restore_puts_everything_on_every_host(tmp_path: Path) -> None:
    source = tmp_path / "there"
    (source / "checkpoint-5" / "empty").mkdir(parents=True)
    (source / "checkpoint-5" / "model.pt").write_bytes(b"model")
    (source / "checkpoint-5" / "model.pt.sagemaker-uploaded").write_bytes(b"")
    (source / "x.sagemaker-uploading").write_bytes(b"")
    (source / ".hotfire-sync.half").write_bytes(b"half")
    (source / "last").symlink_to("checkpoint-5/model.pt")
    hosts = [tmp_path / "algo-1", tmp_path / "algo-2"]
    events: list[Event] = []
    known = restore(LocalLocation(source), hosts, events.append)
    for host, one in zip(hosts, known, strict=True):
        assert files(host) == {"checkpoint-5/model.pt": b"model", "last": b"model"}
        assert set(one) == {"checkpoint-5/model.pt", "last"}
    assert events[-1] == Progress(activity="checkpoints", done=20, total=20)


def test_nothing_to_restore(tmp_path: Path) -> None:
    assert restore(LocalLocation(tmp_path / "none"), [tmp_path / "a"], ignore) == [{}]
    assert (tmp_path / "a").is_dir()
    assert restore(LocalLocation(tmp_path), [], ignore) == []


def test_restore_from_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="not a directory"):
        restore(LocalLocation(tmp_path / "file"), [tmp_path / "a"], ignore)


def test_sync_and_restore_over_s3(tmp_path: Path, s3_environ: Any, s3_bucket: str) -> None:
    client = s3_environ.client()
    client.put_object(Bucket=s3_bucket, Key="ck", Body=b"a neighbour")
    client.put_object(Bucket=s3_bucket, Key="ckpt2/x", Body=b"another")
    location, s3 = S3Location(s3_bucket, "ckpt"), S3()
    local = tmp_path / "algo-1"
    big = os.urandom(9 << 20)
    with Sync(
        local, destination(location, Uploads(tmp_path / "uploads"), s3), ignore, settle=0.05
    ) as running:
        (local / "d").mkdir()
        (local / "d" / "big").write_bytes(big)
        (local / "empty").write_bytes(b"")
        (local / "gone").write_bytes(b"1")
        end = time.monotonic() + 30
        while running.uploaded < 3 and time.monotonic() < end:
            time.sleep(0.01)
        (local / "gone").unlink()
    assert keys(client, s3_bucket) == {
        "ck": b"a neighbour",
        "ckpt2/x": b"another",
        "ckpt/d/big": big,
        "ckpt/empty": b"",
    }
    client.put_object(Bucket=s3_bucket, Key="ckpt/empty.sagemaker-uploaded", Body=b"")
    client.put_object(Bucket=s3_bucket, Key="ckpt/folder/", Body=b"")
    hosts = [tmp_path / "b1", tmp_path / "b2"]
    known = restore(location, hosts, ignore, s3=s3)
    for host, one in zip(hosts, known, strict=True):
        assert files(host) == {"d/big": big, "empty": b""}
        with Sync(
            host, destination(location, Uploads(tmp_path / "uploads"), s3), ignore, known=one
        ) as second:
            pass
        assert (second.uploaded, second.deleted) == (0, 0)


def test_a_bucket_that_is_not_there(tmp_path: Path, s3_environ: Any) -> None:
    location = S3Location("no-such-bucket-here", "p")
    with pytest.raises(DataError, match="does not exist"):
        restore(location, [tmp_path / "a"], ignore)
    local = tmp_path / "b"
    local.mkdir()
    (local / "a").write_bytes(b"1")
    with (
        pytest.raises(DataError, match="a could not be stored in s3://no-such-bucket-here/p/"),
        Sync(local, destination(location, Uploads(tmp_path / "uploads")), ignore, patience=0.5),
    ):
        pass


def test_names_that_s3_cannot_hold_are_told_and_left_out(
    tmp_path: Path, s3_environ: Any, s3_bucket: str
) -> None:
    events: list[Event] = []
    folder = tmp_path / ("x" * 200) / ("y" * 200)
    local = tmp_path
    deep = folder / ("z" * 200) / ("v" * 200) / ("w" * 240)
    deep.mkdir(parents=True)
    (deep / "a").write_bytes(b"1")
    (local / os.fsdecode(b"caf\xe9")).write_bytes(b"1")
    (local / "caf\u00e9 'x").write_bytes(b"1")
    with Sync(
        local,
        destination(S3Location(s3_bucket, ""), Uploads(tmp_path / "../uploads")),
        events.append,
    ):
        pass
    assert set(keys(s3_environ.client(), s3_bucket)) == {"caf\u00e9 'x"}
    notes = sorted(one.text for one in events if isinstance(one, Note))
    assert len(notes) == 2 and "not UTF-8" in notes[0] and "1024 bytes" in notes[1]


def test_keys_that_are_no_paths_are_refused(
    tmp_path: Path, s3_environ: Any, s3_bucket: str
) -> None:
    s3_environ.client().put_object(Bucket=s3_bucket, Key="p/../../escape", Body=b"1")
    with pytest.raises(DataError, match="would leave"):
        restore(S3Location(s3_bucket, "p"), [tmp_path / "a"], ignore)
    assert not (tmp_path / "escape").exists()


def test_copies_keep_holes_and_can_be_abandoned(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.write(b"head")
        file.truncate(200 << 20)
        file.seek(100 << 20)
        file.write(b"middle")
    with path.open("rb") as reader, (tmp_path / "b").open("wb") as writer:
        copy_exactly(reader.fileno(), writer.fileno(), 200 << 20, lambda: True)
    assert (tmp_path / "b").stat().st_blocks <= path.stat().st_blocks + 64
    with path.open("rb") as one, (tmp_path / "b").open("rb") as other:
        while piece := one.read(1 << 20):
            assert other.read(1 << 20) == piece
    with (
        path.open("rb") as reader,
        (tmp_path / "c").open("wb") as writer,
        pytest.raises(Abandoned),
    ):
        copy_exactly(reader.fileno(), writer.fileno(), 200 << 20, lambda: False)
    with (
        path.open("rb") as reader,
        (tmp_path / "c").open("wb") as writer,
        pytest.raises(Changed),
    ):
        copy_exactly(reader.fileno(), writer.fileno(), 300 << 20, lambda: True)
