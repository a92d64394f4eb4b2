"""S3 over HTTP: what goes wrong there, uploads, and that boto3 is not imported for nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.errors import DataError, ValidationError
from hotfire.runtime.events import Event, Progress, ignore
from hotfire.runtime.s3 import S3
from hotfire.runtime.s3_upload import upload
from hotfire.runtime.storage import S3Location


def test_lists_all_pages_in_s3s_order(s3_environ: Any, s3_bucket: str) -> None:
    client = s3_environ.client()
    for number in range(12):
        client.put_object(Bucket=s3_bucket, Key=f"many/{number}", Body=b"")
    pages = []

    def small_pages(params: dict[str, Any], **_: Any) -> None:
        pages.append(params.setdefault("MaxKeys", 5))

    client.meta.events.register("provide-client-params.s3.ListObjectsV2", small_pages)
    keys = [one.key for one in S3(lambda: client).objects(S3Location(s3_bucket, "many/"))]
    assert keys == sorted(f"many/{number}" for number in range(12))
    assert len(pages) == 3


def test_uploads_in_parts_with_progress(tmp_path: Path, s3_environ: Any, s3_bucket: str) -> None:
    data = os.urandom(9_000_000)
    (tmp_path / "file").write_bytes(data)
    events: list[Event] = []
    files = [(tmp_path / "file", S3Location(s3_bucket, "out/x"))]
    upload(S3(), files, events.append, "up", kms_key_id="k")
    answer = s3_environ.client().get_object(Bucket=s3_bucket, Key="out/x")
    assert answer["Body"].read() == data
    assert answer["ETag"].strip('"').endswith("-2")
    assert (answer["ServerSideEncryption"], answer["SSEKMSKeyId"]) == ("aws:kms", "k")
    moved = [event.done for event in events if isinstance(event, Progress)]
    assert moved == sorted(moved)
    assert (len(moved) > 2, moved[-1]) == (True, 9_000_000)


def test_a_failed_upload_names_the_kept_file(tmp_path: Path, s3_environ: Any) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(
        DataError, match=r"Artifact upload failed: .*the bucket does not exist"
    ) as caught:
        upload(S3(), [(tmp_path / "file", S3Location("not-there-at-all", "k"))], ignore, "up")
    assert str(tmp_path / "file") in caught.value.do


def test_a_bucket_is_checked(s3_environ: Any, s3_bucket: str) -> None:
    S3().check_bucket(S3Location(s3_bucket, "any/key"))
    with pytest.raises(ValidationError, match="the bucket does not exist"):
        S3().check_bucket(S3Location("not-there-at-all", ""))


@pytest.mark.usefixtures("s3_environ")
def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ValidationError, match="no AWS credentials") as caught:
        S3().objects(S3Location("b", ""))
    assert "--map" in caught.value.do


@pytest.mark.usefixtures("s3_environ")
def test_an_unknown_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ValidationError, match="nobody"):
        S3().objects(S3Location("b", ""))


def test_an_unreachable_endpoint(s3_environ: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(ValidationError, match="no connection") as caught:
        S3().objects(S3Location("b", ""))
    assert "AWS_ENDPOINT_URL_S3" in caught.value.do


def test_an_impossible_bucket_name(s3_environ: Any) -> None:
    with pytest.raises(ValidationError, match="cannot list"):
        S3().objects(S3Location("No Bucket", ""))


def test_local_work_never_imports_boto3(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from hotfire.runtime import artifacts, channels, devices, preflight, s3, storage\n"
        "s3.S3(); devices.machine()\n"
        "print(sorted({'boto3', 'botocore', 'isal', 'torch'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "[]\n"
