"""Buckets on disk: what is left after a kill, after failures, and while somebody reads."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotfire.runtime.endpoint.objects import Object, ObjectStore, S3Error


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    made = ObjectStore(tmp_path / "objects")
    made.create_bucket("bucket", "us-east-1")
    yield made
    made.close()


def put(store: ObjectStore, key: str, data: bytes) -> None:
    piece, md5 = store.receive(io.BytesIO(data).read)
    store.put("bucket", Object(key=key, size=len(data), etag=md5, modified=1.0, pieces=(piece,)))


def read(store: ObjectStore, key: str) -> bytes:
    _, reading = store.open("bucket", key, lambda found: (0, found.size))
    try:
        return b"".join(reading)
    finally:
        reading.close()


def files(tmp_path: Path) -> int:
    return len(list((tmp_path / "objects" / "files").iterdir()))


def test_objects_outlive_the_process_and_nothing_else_does(
    store: ObjectStore, tmp_path: Path
) -> None:
    put(store, "kept", b"1")
    put(store, "gone", b"2")
    store.delete("bucket", "gone")
    store.receive(io.BytesIO(b"a kill came before the key").read)
    upload = store.begin_upload("bucket", "later", {})
    piece, md5 = store.receive(io.BytesIO(b"part").read)
    store.put_part(upload, 1, piece, md5)
    assert files(tmp_path) == 3
    store.close()
    again = ObjectStore(tmp_path / "objects")
    assert files(tmp_path) == 2
    assert read(again, "kept") == b"1"
    (part,) = again.parts(upload)
    again.complete("bucket", "later", upload, [part], only_if_absent=False)
    assert read(again, "later") == b"part"
    again.close()


def test_an_upload_that_breaks_leaves_no_file(store: ObjectStore, tmp_path: Path) -> None:
    def broken(count: int) -> bytes:
        if files(tmp_path):
            raise ConnectionError
        return b"x"

    with pytest.raises(ConnectionError):
        store.receive(broken)
    assert files(tmp_path) == 0


def test_files_go_when_the_last_reader_has_gone(store: ObjectStore, tmp_path: Path) -> None:
    put(store, "key", b"old")
    _, first = store.open("bucket", "key", lambda found: (0, found.size))
    _, second = store.open("bucket", "key", lambda found: (1, 2))
    put(store, "key", b"new")
    store.delete("bucket", "key")
    assert files(tmp_path) == 1
    first.close()
    first.close()
    assert b"".join(second) == b"l"
    second.close()
    assert files(tmp_path) == 0


def test_a_refused_completion_keeps_the_upload(store: ObjectStore) -> None:
    put(store, "key", b"there")
    upload = store.begin_upload("bucket", "key", {})
    piece, md5 = store.receive(io.BytesIO(b"part").read)
    store.put_part(upload, 1, piece, md5)
    with pytest.raises(S3Error) as error:
        store.complete("bucket", "key", upload, store.parts(upload), only_if_absent=True)
    assert error.value.api_code == "PreconditionFailed"
    assert len(store.parts(upload)) == 1
    store.complete("bucket", "key", upload, store.parts(upload), only_if_absent=False)
    assert read(store, "key") == b"part"
    with pytest.raises(S3Error):
        store.abort("bucket", "key", upload)
