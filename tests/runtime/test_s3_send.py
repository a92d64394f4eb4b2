"""Uploads in parts that are cut short, and go on: against a real S3 API, part by part."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from hotfire.runtime import s3_send
from hotfire.runtime.destinations import S3Destination
from hotfire.runtime.errors import DataError
from hotfire.runtime.events import Event, Note, Progress, ignore
from hotfire.runtime.s3 import S3
from hotfire.runtime.s3_abort import take_all_back
from hotfire.runtime.s3_upload import upload
from hotfire.runtime.storage import S3Location
from hotfire.runtime.sync import Sync
from hotfire.runtime.uploads import Uploads

MIB = 1 << 20
SIZE = 5 * s3_send.PART + 3


class Counted:
    """S3 that counts the parts it has stored, and refuses those it is told to refuse once it has the others."""

    def __init__(self) -> None:
        self.s3 = S3()
        self.sent: list[int] = []
        self.refused: set[int] = set()
        self._more = threading.Condition()
        events = self.s3.client.meta.events
        events.register("before-call.s3.UploadPart", self._begin)
        events.register("after-call.s3.UploadPart", self._stored)

    def _begin(self, params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        number = int(params["query_string"]["partNumber"])
        context["number"] = number
        if number in self.refused:
            self.stored({1, 2, 4, 6})
            raise ClientError({"Error": {"Code": "AccessDenied"}}, "UploadPart")

    def stored(self, numbers: set[int]) -> bool:
        with self._more:
            return self._more.wait_for(lambda: set(self.sent) >= numbers, 60)

    def _stored(self, parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        with self._more:
            self.sent += [context["number"]] * ("Error" not in parsed)
            self._more.notify_all()


@pytest.fixture
def counted(s3_environ: Any) -> Iterator[Counted]:
    made = Counted()
    yield made
    made.s3.client.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.tar.gz"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(tmp_path / "uploads" / "artifacts")


def in_progress(environ: Any, bucket: str) -> list[str]:
    listed = environ.client().list_multipart_uploads(Bucket=bucket)
    return [one["UploadId"] for one in listed.get("Uploads", ())]


def stored(environ: Any, bucket: str, key: str) -> bytes:
    return bytes(environ.client().get_object(Bucket=bucket, Key=key)["Body"].read())


def cut_short(counted: Counted, source: Path, to: S3Location, uploads: Uploads | None) -> None:
    """All parts but the third and the fifth arrive."""
    counted.refused = {3, 5}
    with pytest.raises(DataError, match="access denied"):
        upload(counted.s3, [(source, to)], ignore, "up", uploads=uploads)
    counted.refused = set()


def test_only_what_is_missing_is_sent(
    counted: Counted, source: Path, uploads: Uploads, s3_bucket: str, s3_environ: Any
) -> None:
    to = S3Location(s3_bucket, "out/model.tar.gz")
    cut_short(counted, source, to, uploads)
    before = list(counted.sent)
    (begun,) = uploads.all()
    assert in_progress(s3_environ, s3_bucket) == [begun.upload_id]
    events: list[Event] = []
    upload(counted.s3, [(source, to)], events.append, "up", uploads=uploads)
    assert (sorted(before), sorted(counted.sent)) == ([1, 2, 4, 6], [1, 2, 3, 4, 5, 6])
    assert stored(s3_environ, s3_bucket, to.key) == source.read_bytes()
    assert (uploads.all(), in_progress(s3_environ, s3_bucket)) == ([], [])
    (note,) = [one.text for one in events if isinstance(one, Note)]
    assert "have arrived" in note
    moved = [one.done for one in events if isinstance(one, Progress)]
    assert (moved == sorted(moved), moved[-1]) == (True, SIZE)
    assert moved[0] == SIZE - 2 * s3_send.PART


def test_a_file_that_has_changed_starts_over(
    counted: Counted, source: Path, uploads: Uploads, s3_bucket: str, s3_environ: Any
) -> None:
    to = S3Location(s3_bucket, "k")
    cut_short(counted, source, to, uploads)
    source.write_bytes(os.urandom(SIZE))
    counted.sent.clear()
    upload(counted.s3, [(source, to)], ignore, "up", uploads=uploads)
    assert sorted(counted.sent) == [1, 2, 3, 4, 5, 6]
    assert stored(s3_environ, s3_bucket, "k") == source.read_bytes()
    assert in_progress(s3_environ, s3_bucket) == []


def test_what_cannot_be_taken_back_now_is_not_forgotten(
    counted: Counted, source: Path, uploads: Uploads, s3_bucket: str, s3_environ: Any
) -> None:
    to = S3Location(s3_bucket, "k")
    cut_short(counted, source, to, uploads)
    before = uploads.all()
    source.write_bytes(os.urandom(SIZE))

    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "any")

    events = counted.s3.client.meta.events
    for name in ("AbortMultipartUpload", "CreateMultipartUpload"):
        events.register(f"before-call.s3.{name}", refuse)
    with pytest.raises(DataError, match="access denied"):
        upload(counted.s3, [(source, to)], ignore, "up", uploads=uploads)
    assert uploads.all() == before
    for name in ("AbortMultipartUpload", "CreateMultipartUpload"):
        events.unregister(f"before-call.s3.{name}", refuse)
    upload(counted.s3, [(source, to)], ignore, "up", uploads=uploads)
    assert (uploads.all(), in_progress(s3_environ, s3_bucket)) == ([], [])


@pytest.mark.parametrize("torn", [False, True])
def test_an_upload_that_s3_no_longer_knows_starts_over(
    counted: Counted,
    source: Path,
    uploads: Uploads,
    s3_bucket: str,
    s3_environ: Any,
    tmp_path: Path,
    torn: bool,
) -> None:
    """A lifecycle rule has removed it, or its record is unreadable."""
    to = S3Location(s3_bucket, "k")
    cut_short(counted, source, to, uploads)
    (begun,) = uploads.all()
    where = {"Bucket": s3_bucket, "Key": "k", "UploadId": begun.upload_id}
    s3_environ.client().abort_multipart_upload(**where)
    if torn:
        (record,) = (tmp_path / "uploads" / "artifacts").iterdir()
        record.write_text('{"bucket": "b", "upl')
    counted.sent.clear()
    upload(counted.s3, [(source, to)], ignore, "up", uploads=uploads)
    assert sorted(counted.sent) == [1, 2, 3, 4, 5, 6]
    assert stored(s3_environ, s3_bucket, "k") == source.read_bytes()


def test_an_upload_taken_back_while_it_runs_starts_over(
    counted: Counted, source: Path, uploads: Uploads, s3_bucket: str, s3_environ: Any
) -> None:
    """As when the answer to its completion is lost."""
    client, aborted = s3_environ.client(), []

    def abort(params: dict[str, Any], **_: Any) -> None:
        if not aborted:
            (begun,) = uploads.all()
            aborted.append(begun.upload_id)
            client.abort_multipart_upload(Bucket=s3_bucket, Key="k", UploadId=begun.upload_id)
            # What S3 answers then; moto has an internal error.
            raise ClientError({"Error": {"Code": "NoSuchUpload"}}, "CompleteMultipartUpload")

    counted.s3.client.meta.events.register("before-call.s3.CompleteMultipartUpload", abort)
    to = S3Location(s3_bucket, "k")
    upload(counted.s3, [(source, to)], ignore, "up", uploads=uploads)
    assert len(counted.sent) == 12
    assert stored(s3_environ, s3_bucket, "k") == source.read_bytes()
    assert (uploads.all(), in_progress(s3_environ, s3_bucket)) == ([], [])


def test_without_a_record_nothing_is_left(
    counted: Counted, source: Path, s3_bucket: str, s3_environ: Any, tmp_path: Path
) -> None:
    """Nobody could go on with it: there is no job, or no room for the record."""
    cut_short(counted, source, S3Location(s3_bucket, "k"), None)
    assert in_progress(s3_environ, s3_bucket) == []
    (tmp_path / "file").touch()
    cut_short(counted, source, S3Location(s3_bucket, "k"), Uploads(tmp_path / "file" / "below"))
    assert in_progress(s3_environ, s3_bucket) == []


def test_a_file_that_changes_on_the_way_is_not_stored(
    counted: Counted, source: Path, uploads: Uploads, s3_bucket: str, s3_environ: Any
) -> None:
    def change(params: dict[str, Any], **_: Any) -> None:
        if params["query_string"]["partNumber"] in (2, "2"):
            os.truncate(source, SIZE - MIB)

    counted.s3.client.meta.events.register("before-call.s3.UploadPart", change)
    with pytest.raises(DataError, match="changed while it was sent"):
        upload(counted.s3, [(source, S3Location(s3_bucket, "k"))], ignore, "up", uploads=uploads)
    assert (uploads.all(), in_progress(s3_environ, s3_bucket)) == ([], [])
    assert "Contents" not in s3_environ.client().list_objects_v2(Bucket=s3_bucket)


def test_what_nobody_goes_on_with_is_taken_back(
    counted: Counted,
    source: Path,
    uploads: Uploads,
    s3_bucket: str,
    s3_environ: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut_short(counted, source, S3Location(s3_bucket, "k"), uploads)
    with monkeypatch.context() as away:
        away.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        away.setenv("AWS_MAX_ATTEMPTS", "1")
        (left,) = take_all_back(tmp_path / "uploads")
        assert [left] == uploads.all(), "for another try"
    assert take_all_back(tmp_path / "uploads") == []
    assert (uploads.all(), in_progress(s3_environ, s3_bucket)) == ([], [])


def test_checkpoints_go_on_and_leave_nothing(
    counted: Counted,
    source: Path,
    uploads: Uploads,
    s3_bucket: str,
    s3_environ: Any,
    tmp_path: Path,
) -> None:
    counted.refused = {3, 5}
    destination = S3Destination(S3Location(s3_bucket, "kept"), counted.s3, uploads)
    local = tmp_path / "checkpoints"
    local.mkdir()
    (local / "step-1").write_bytes(source.read_bytes())
    again = threading.Event()

    def listing(**_: Any) -> None:
        counted.refused = set()
        again.set()

    counted.s3.client.meta.events.register("before-call.s3.ListParts", listing)
    with Sync(local, destination, ignore):
        pass
    assert again.is_set()
    assert sorted(counted.sent) == [1, 2, 3, 4, 5, 6]
    assert stored(s3_environ, s3_bucket, "kept/step-1") == source.read_bytes()
    # The host is lost half-way: what was not uploaded is lost with it, in the bucket too.
    counted.sent.clear()
    counted.refused = {3, 5}
    with Sync(local, destination, ignore) as running:
        (local / "step-2").write_bytes(source.read_bytes())
        assert counted.stored({1, 2, 4, 6})
        assert len(in_progress(s3_environ, s3_bucket)) == 1
        running.abandon()
    assert (uploads.all(), in_progress(s3_environ, s3_bucket)) == ([], [])
    assert "step-2" not in str(s3_environ.client().list_objects_v2(Bucket=s3_bucket)["Contents"])
