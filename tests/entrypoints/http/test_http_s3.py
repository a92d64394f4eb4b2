"""S3 through boto3: what training jobs, SDKs and the command line do with it."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

MIB = 1 << 20


@pytest.fixture
def bucket(endpoint: Any, request: pytest.FixtureRequest) -> str:
    name = f"b-{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}"
    endpoint.client("s3").create_bucket(Bucket=name)
    return name


@pytest.fixture
def s3(endpoint: Any) -> Any:
    return endpoint.client("s3")


def code(error: pytest.ExceptionInfo[ClientError]) -> str:
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] < 500
    return str(error.value.response["Error"]["Code"])


def test_buckets(s3: Any, bucket: str) -> None:
    assert bucket in [one["Name"] for one in s3.list_buckets()["Buckets"]]
    s3.head_bucket(Bucket=bucket)
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    s3.put_object(Bucket=bucket, Key="k", Body=b"")
    with pytest.raises(ClientError) as error:
        s3.delete_bucket(Bucket=bucket)
    assert code(error) == "BucketNotEmpty"
    s3.delete_object(Bucket=bucket, Key="k")
    s3.delete_bucket(Bucket=bucket)
    with pytest.raises(ClientError) as error:
        s3.head_bucket(Bucket=bucket)
    assert code(error) == "404"
    for call in (
        lambda: s3.put_object(Bucket=bucket, Key="k", Body=b"x"),
        lambda: s3.list_objects_v2(Bucket=bucket),
    ):
        with pytest.raises(s3.exceptions.NoSuchBucket):
            call()
    with pytest.raises(ClientError) as error:
        s3.put_bucket_policy(Bucket=bucket, Policy="{}")
    assert code(error) == "NotImplemented"


@pytest.mark.parametrize(
    "key", ["plain", "a b/c+d", "ünï/cödé", "a//b/", "100%", "q?x=1&y", "tab\tkey", "é" * 500]
)
def test_any_key_goes_there_and_back(s3: Any, bucket: str, key: str) -> None:
    body = os.urandom(1000)
    put = s3.put_object(
        Bucket=bucket, Key=key, Body=body, ContentType="text/x", Metadata={"who": "me"}
    )
    assert put["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
    got = s3.get_object(Bucket=bucket, Key=key)
    assert got["Body"].read() == body
    assert (got["ContentType"], got["Metadata"], got["ETag"]) == (
        "text/x",
        {"who": "me"},
        put["ETag"],
    )
    assert s3.head_object(Bucket=bucket, Key=key)["ContentLength"] == 1000
    assert [one["Key"] for one in s3.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    s3.delete_object(Bucket=bucket, Key=key)
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object(Bucket=bucket, Key=key)


def test_a_key_that_is_too_long_leaves_nothing(s3: Any, bucket: str) -> None:
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket=bucket, Key="k" * 1025, Body=b"x")
    assert code(error) == "KeyTooLongError"
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_ranges(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"0123456789")

    def part(text: str) -> tuple[bytes, str]:
        got = s3.get_object(Bucket=bucket, Key="k", Range=text)
        return got["Body"].read(), got.get("ContentRange", "")

    assert part("bytes=2-4") == (b"234", "bytes 2-4/10")
    assert part("bytes=8-") == (b"89", "bytes 8-9/10")
    assert part("bytes=-3") == (b"789", "bytes 7-9/10")
    assert part("bytes=5-100") == (b"56789", "bytes 5-9/10")
    assert part("lines=1-2") == (b"0123456789", "")
    with pytest.raises(ClientError) as error:
        part("bytes=10-")
    assert code(error) == "InvalidRange"


def test_conditions(s3: Any, bucket: str) -> None:
    tag = s3.put_object(Bucket=bucket, Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket=bucket, Key="k", Body=b"2", IfNoneMatch="*")
    assert code(error) == "PreconditionFailed"
    assert s3.get_object(Bucket=bucket, Key="k", IfMatch=tag)["Body"].read() == b"1"
    for condition in ({"IfMatch": '"other"'}, {"IfNoneMatch": tag}):
        with pytest.raises(ClientError) as error:
            s3.get_object(Bucket=bucket, Key="k", **condition)
        assert code(error) in ("PreconditionFailed", "304")


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
def test_checksums_are_kept_and_checked(s3: Any, bucket: str, algorithm: str) -> None:
    member = f"Checksum{algorithm}"
    put = s3.put_object(Bucket=bucket, Key="k", Body=b"hello", ChecksumAlgorithm=algorithm)
    got = s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert got["Body"].read() == b"hello"
    assert got[member] == put[member]
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket=bucket, Key="k", Body=b"other", **{member: put[member]})
    assert code(error) == "BadDigest"
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"hello"


def test_a_stream_of_unknown_checksum_comes_in_frames(s3: Any, bucket: str) -> None:
    """boto3 sends what it cannot read twice as aws-chunked, with the checksum behind it."""

    class Once(io.RawIOBase):
        def __init__(self) -> None:
            self.inner = io.BytesIO(bytes(range(256)) * 20_000)

        def read(self, size: int = -1) -> bytes:
            return self.inner.read(size)

        def readable(self) -> bool:
            return True

    s3.upload_fileobj(Once(), bucket, "k")
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == bytes(range(256)) * 20_000


def test_listing_by_prefix_and_delimiter(s3: Any, bucket: str) -> None:
    keys = ["a", "a/1", "a/2", "a/b/3", "a0", "b/x", "c", "é/x", "z"]
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=b"")

    def listed(operation: str, size: int, **asked: Any) -> list[str]:
        pages = s3.get_paginator(operation).paginate(
            Bucket=bucket, PaginationConfig={"PageSize": size}, **asked
        )
        found = []
        for page in pages:
            found += [one["Key"] for one in page.get("Contents", ())]
            found += [one["Prefix"] for one in page.get("CommonPrefixes", ())]
        return found

    for how in itertools.product(("list_objects", "list_objects_v2"), (1, 2, 3, 1000)):
        assert listed(*how) == sorted(keys, key=str.encode)
        assert sorted(listed(*how, Delimiter="/")) == ["a", "a/", "a0", "b/", "c", "z", "é/"]
        assert sorted(listed(*how, Delimiter="/", Prefix="a/")) == ["a/1", "a/2", "a/b/"]
        assert listed(*how, Prefix="nothing") == []
    after = s3.list_objects_v2(Bucket=bucket, StartAfter="b/x")
    assert [one["Key"] for one in after["Contents"]] == ["c", "z", "é/x"]


def test_more_than_a_page_of_keys(s3: Any, bucket: str) -> None:
    for number in range(1050):
        s3.put_object(Bucket=bucket, Key=f"many/{number:04d}", Body=b"")
    pages = list(s3.get_paginator("list_objects_v2").paginate(Bucket=bucket))
    assert [page["KeyCount"] for page in pages] == [1000, 50]
    grouped = s3.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert [one["Prefix"] for one in grouped["CommonPrefixes"]] == ["many/"]
    objects = [{"Key": one["Key"]} for page in pages for one in page["Contents"]]
    assert (
        len(s3.delete_objects(Bucket=bucket, Delete={"Objects": objects[:1000]})["Deleted"]) == 1000
    )
    s3.delete_objects(Bucket=bucket, Delete={"Objects": objects[1000:], "Quiet": True})
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_copies(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="from é", Body=b"data", Metadata={"a": "1"})
    source = {"Bucket": bucket, "Key": "from é"}
    s3.copy_object(Bucket=bucket, Key="to", CopySource=source)
    s3.copy_object(
        Bucket=bucket,
        Key="fresh",
        CopySource=source,
        Metadata={"b": "2"},
        MetadataDirective="REPLACE",
    )
    s3.delete_object(**source)
    assert s3.get_object(Bucket=bucket, Key="to")["Body"].read() == b"data"
    assert s3.head_object(Bucket=bucket, Key="to")["Metadata"] == {"a": "1"}
    assert s3.head_object(Bucket=bucket, Key="fresh")["Metadata"] == {"b": "2"}
    with pytest.raises(ClientError) as error:
        s3.copy_object(Bucket=bucket, Key="x", CopySource=source)
    assert code(error) == "NoSuchKey"


def test_multipart_uploads(s3: Any, bucket: str, tmp_path: Path) -> None:
    data = os.urandom(23 * MIB)
    source = tmp_path / "source"
    source.write_bytes(data)
    parts = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    s3.upload_file(str(source), bucket, "k", Config=parts)
    assert s3.head_object(Bucket=bucket, Key="k")["ETag"].endswith('-5"')
    back = tmp_path / "back"
    s3.download_file(bucket, "k", str(back), Config=parts)
    assert back.read_bytes() == data
    across = s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={5 * MIB - 3}-{5 * MIB + 2}")
    assert across["Body"].read() == data[5 * MIB - 3 : 5 * MIB + 3]
    s3.copy({"Bucket": bucket, "Key": "k"}, bucket, "copied", Config=parts)
    assert s3.get_object(Bucket=bucket, Key="copied")["Body"].read() == data


def test_multipart_refusals(s3: Any, bucket: str) -> None:
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    where = {"Bucket": bucket, "Key": "k", "UploadId": upload}
    tags = [s3.upload_part(**where, PartNumber=n, Body=b"small")["ETag"] for n in (1, 2)]
    assert [part["PartNumber"] for part in s3.list_parts(**where)["Parts"]] == [1, 2]
    assert s3.list_multipart_uploads(Bucket=bucket)["Uploads"][0]["UploadId"] == upload

    def complete(*parts: tuple[int, str]) -> str:
        listed = [{"PartNumber": number, "ETag": tag} for number, tag in parts]
        with pytest.raises(ClientError) as error:
            s3.complete_multipart_upload(**where, MultipartUpload={"Parts": listed})
        return code(error)

    assert complete((1, tags[0]), (2, tags[1])) == "EntityTooSmall"
    assert complete((2, tags[1]), (1, tags[0])) == "InvalidPartOrder"
    assert complete((1, tags[0]), (3, tags[1])) == "InvalidPart"
    assert complete((1, '"0"')) == "InvalidPart"
    s3.abort_multipart_upload(**where)
    with pytest.raises(ClientError) as error:
        s3.upload_part(**where, PartNumber=1, Body=b"late")
    assert code(error) == "NoSuchUpload"


def test_presigned_urls_of_both_kinds(endpoint: Any, bucket: str) -> None:
    for version in ("s3", "s3v4"):
        client = endpoint.client("s3", signature_version=version)
        put = client.generate_presigned_url("put_object", {"Bucket": bucket, "Key": "p"})
        request = urllib.request.Request(put, data=version.encode(), method="PUT")
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(
            client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "p"})
        ) as answer:
            assert answer.read() == version.encode()


def test_whoever_reads_an_object_reads_one_version(s3: Any, bucket: str) -> None:
    old, new = b"o" * 8 * MIB, b"n" * 8 * MIB
    s3.put_object(Bucket=bucket, Key="k", Body=old)
    reading = s3.get_object(Bucket=bucket, Key="k")["Body"]
    first = reading.read(MIB)
    s3.put_object(Bucket=bucket, Key="k", Body=new)
    assert first + reading.read() == old
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == new


def test_the_server_does_not_grow_with_the_objects(endpoint: Any, s3: Any, bucket: str) -> None:
    """A quarter of a gibibyte in one PUT and back out, with the server's peak memory measured by the kernel."""

    def peak() -> int:
        status = Path(f"/proc/{endpoint.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if "VmHWM" in line).split()[1]) << 10

    class Zeros(io.RawIOBase):
        """Costs no memory on this side either."""

        left = 256 * MIB

        def read(self, size: int = -1) -> bytes:
            count = min(MIB if size < 0 else size, self.left)
            self.left -= count
            return bytes(count)

    s3.put_object(Bucket=bucket, Key="warm", Body=b"x")
    before = peak()
    body = Zeros()
    import http.client

    link = http.client.HTTPConnection("127.0.0.1", endpoint.port)
    link.putrequest("PUT", f"/{bucket}/large")
    link.putheader("Authorization", "AWS any:any")
    link.putheader("Content-Length", str(Zeros.left))
    link.endheaders()
    while data := body.read(MIB):
        link.send(data)
    assert link.getresponse().status == 200
    link.close()
    received = 0
    stream = s3.get_object(Bucket=bucket, Key="large")["Body"]
    while data := stream.read(MIB):
        received += len(data)
    assert received == 256 * MIB
    assert peak() - before < 32 * MIB
    s3.delete_object(Bucket=bucket, Key="large")
