"""RecordIO chunks from a folder per class, on disk and in S3, read back by the reader library."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime import packing
from hotfire.runtime.data import mxnet
from hotfire.runtime.errors import ValidationError
from hotfire.runtime.events import Event, Note, ignore
from hotfire.runtime.storage import LocalLocation, S3Location


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for name in ("cat/1.jpg", "cat/deep/2.jpg", "dog ü/1.jpg", "dog ü/2.jpg"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(name.encode() * 10)
    (tmp_path / "images" / "README").write_text("no class")
    return tmp_path / "images"


def test_every_file_is_a_labelled_record(images: Path, tmp_path: Path) -> None:
    packed = packing.pack(images, LocalLocation(tmp_path / "out"), ignore, chunk=150)
    assert (packed.records, packed.classes) == (4, ("cat", "dog ü"))
    chunks = sorted((tmp_path / "out").glob("*.rec"))
    assert [path.name for path in chunks] == [f"part-{n:05d}.rec" for n in range(packed.chunks)]
    assert 1 < packed.chunks < 4
    assert packed.bytes == sum(path.stat().st_size for path in chunks)
    found = [one for path in chunks for one in mxnet.read(io.BytesIO(path.read_bytes()))]
    assert sorted(one.number for one in found) == [0, 1, 2, 3]
    assert {(one.label, one.payload) for one in found} == {
        (label, name.encode() * 10)
        for label, name in (
            (0, "cat/1.jpg"),
            (0, "cat/deep/2.jpg"),
            (1, "dog ü/1.jpg"),
            (1, "dog ü/2.jpg"),
        )
    }
    assert json.loads((tmp_path / "out" / "classes.json").read_text()) == {"0": "cat", "1": "dog ü"}


def test_the_seed_sets_the_order(images: Path, tmp_path: Path) -> None:
    def order(seed: int) -> list[bytes]:
        chunk = tmp_path / "o" / "part-00000.rec"
        chunk.unlink(missing_ok=True)
        packing.pack(images, LocalLocation(tmp_path / "o"), ignore, chunk=10**6, seed=seed)
        data = chunk.read_bytes()
        return [one.payload for one in mxnet.read(io.BytesIO(data))]

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(5)}) > 1


def test_to_s3(images: Path, s3_environ: Any, s3_bucket: str) -> None:
    packing.pack(images, S3Location(s3_bucket, "train/"), ignore, chunk=10**6)
    listed = s3_environ.client().list_objects_v2(Bucket=s3_bucket)["Contents"]
    assert [one["Key"] for one in listed] == ["train/classes.json", "train/part-00000.rec"]
    with pytest.raises(ValidationError, match="has chunks already"):
        packing.pack(images, S3Location(s3_bucket, "train/"), ignore, chunk=10**6)


def test_what_would_mix_with_other_data_is_refused(images: Path, tmp_path: Path) -> None:
    packing.pack(images, LocalLocation(tmp_path / "out"), ignore, chunk=50)
    for place, why in (("out", "has chunks already"), ("images/cat", "packed the next time")):
        with pytest.raises(ValidationError, match=why):
            packing.pack(images, LocalLocation(tmp_path / place), ignore, chunk=10**6)


def test_what_is_no_example_is_left_out(images: Path, tmp_path: Path) -> None:
    for name in (".git/x", "cat/.DS_Store", "cat/.thumbs/1.jpg"):
        (images / name).parent.mkdir(parents=True, exist_ok=True)
        (images / name).write_bytes(b"")
    events: list[Event] = []
    packed = packing.pack(images, LocalLocation(tmp_path / "o"), events.append, chunk=10**6)
    assert (packed.records, packed.classes) == (4, ("cat", "dog ü"))
    (note,) = [event.text for event in events if isinstance(event, Note)]
    assert note.endswith("class: 2")


@pytest.mark.parametrize("name", ["images/cat", "absent"])
def test_no_folders_are_refused(images: Path, tmp_path: Path, name: str) -> None:
    (images / "cat" / "deep" / "2.jpg").unlink()
    with pytest.raises(ValidationError):
        packing.pack(tmp_path / name, LocalLocation(tmp_path / "out"), ignore, chunk=1)
    assert not (tmp_path / "out").exists()
