"""A whole job from S3 to S3, over HTTP: channels, code, credentials, artifacts."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import pytest


@pytest.fixture
def bucket(s3_server: Any, hotfire: Any) -> Any:
    """A client and a bucket of its own; the command line finds both through its environment alone."""
    client = s3_server.client()
    name = f"job-{abs(hash(str(hotfire.cwd)))}"
    client.create_bucket(Bucket=name)
    hotfire.env |= {
        "AWS_ENDPOINT_URL": s3_server.url,
        "AWS_ACCESS_KEY_ID": "AKIDTESTING",
        "AWS_SECRET_ACCESS_KEY": "hush-hush",
        "AWS_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return client, name


def test_from_s3_to_s3(hotfire: Any, bucket: Any) -> None:
    client, name = bucket
    for key, body in {
        "d/train/a b.csv": b"1",
        "d/train/sub/\u00e9.csv": b"22",
        "d/train2": b"3",
    }.items():
        client.put_object(Bucket=name, Key=key, Body=body)
    code = io.BytesIO()
    with tarfile.open(fileobj=code, mode="w:gz") as archive:
        script = (
            b"import os, boto3\n"
            b"d = os.environ['SM_CHANNEL_TRAIN']\n"
            b"print(sorted(os.listdir(d)), os.environ.get('AWS_SECRET_ACCESS_KEY'))\n"
            b"open(d + '/a b.csv', 'a').write('changed')\n"
            b"key = boto3.Session().get_credentials().get_frozen_credentials().access_key\n"
            b"open(os.environ['SM_MODEL_DIR'] + '/key', 'w').write(key)\n"
        )
        member = tarfile.TarInfo("train.py")
        member.size = len(script)
        archive.addfile(member, io.BytesIO(script))
    client.put_object(Bucket=name, Key="code/sourcedir.tar.gz", Body=code.getvalue())
    words = (
        *("run", "train.py", "--source-dir", f"s3://{name}/code/sourcedir.tar.gz"),
        *("--input", f"train=s3://{name}/d/train", "--output", f"s3://{name}/out/"),
    )
    first = hotfire(*words, "--name", "first")
    assert first.returncode == 0, first.stderr + first.stdout
    # The prefix matches train2 as well, so the last slash is the border (contract 3.2).
    assert "['train', 'train2'] None" in first.stdout
    packed = client.get_object(Bucket=name, Key="out/first/output/model.tar.gz")["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert archive.extractfile("key").read() == b"AKIDTESTING"  # type: ignore[union-attr]
    described = hotfire.describe("first")
    assert (
        described["ModelArtifacts"]["S3ModelArtifacts"]
        == f"s3://{name}/out/first/output/model.tar.gz"
    )
    assert ":eu-west-1:" in described["TrainingJobArn"]

    second = hotfire(*words, "--name", "second")
    assert second.returncode == 0, second.stderr
    assert "nothing" in second.stderr
    # Nothing secret has reached the disk.
    for path in hotfire.home.rglob("*"):
        if path.is_file():
            assert b"hush-hush" not in path.read_bytes(), path


def test_an_upload_that_fails_keeps_the_archive_and_says_where(hotfire: Any, bucket: Any) -> None:
    client, name = bucket
    hotfire.script(
        "import os, boto3\n"
        "open(os.environ['SM_MODEL_DIR'] + '/w', 'w').write('weights')\n"
        f"boto3.client('s3').delete_bucket(Bucket='{name}')\n"
    )
    result = hotfire("run", "train.py", "--name", "lost", "--output", f"s3://{name}/out")
    assert result.returncode == 1
    described = hotfire.describe("lost")
    assert described["FailureReason"].startswith("ClientError: ")
    kept = hotfire.home / "jobs" / "lost" / "artifacts" / "model.tar.gz"
    assert kept.is_file()
    assert f"{kept}. Then: hotfire upload lost" in result.stderr
    again = hotfire("upload", "lost")
    assert (again.returncode, again.stdout) == (1, "")
    assert "hotfire upload lost" in again.stderr
    assert kept.is_file()

    client.create_bucket(Bucket=name)
    before = kept.read_bytes()
    sent = hotfire("upload", "lost")
    uri = f"s3://{name}/out/lost/output/model.tar.gz"
    assert (sent.returncode, sent.stdout) == (0, f"{uri}\n"), sent.stderr
    stored = client.get_object(Bucket=name, Key="out/lost/output/model.tar.gz")["Body"].read()
    assert stored == before
    assert not kept.exists()
    described = hotfire.describe("lost")
    assert described["TrainingJobStatus"] == "Failed", "as it ended"
    assert f"artifact   {uri}" in hotfire("describe", "lost").stdout
    assert "nothing left to upload" in hotfire("upload", "lost").stderr


def test_no_object_is_the_services_refusal(hotfire: Any, bucket: Any) -> None:
    client, name = bucket
    client.put_object(Bucket=name, Key="data/training/x", Body=b"1")
    hotfire.script("pass")
    result = hotfire("run", "train.py", "--input", f"train=s3://{name}/data/trian")
    assert result.returncode == 2
    assert "No S3 objects found under S3 URL" in result.stderr
    assert "data/training" in result.stderr
    assert json.loads(hotfire("ps", "--json").stdout) == {"TrainingJobSummaries": []}


def test_a_private_network_has_credentials_at_the_services_address(
    hotfire: Any, bucket: Any
) -> None:
    hotfire.script(
        "import boto3, os\n"
        "assert 'AWS_ACCESS_KEY_ID' not in os.environ\n"
        "assert os.environ['AWS_CONTAINER_CREDENTIALS_RELATIVE_URI'].startswith('/v2/credentials/')\n"
        "print(boto3.Session().get_credentials().get_frozen_credentials().access_key)\n"
    )
    result = hotfire(
        "run", "train.py", "--network", "private", "--instance-count", "2", "--name", "x"
    )
    assert result.returncode == 0, result.stderr + result.stdout
    assert "algo-2 | AKIDTESTING\n" in result.stdout
    assert "hush-hush" not in result.stdout + result.stderr
