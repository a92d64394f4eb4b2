"""A model of many parts whose upload is cut short: what is there is not sent again, and never forgotten in the bucket."""

from __future__ import annotations

import signal
from typing import Any

import pytest

PARTS = 8
KEY = "out/job/output/model/more"


def uploads(rig: Any) -> list[str]:
    listed = rig.client.list_multipart_uploads(Bucket=rig.bucket)
    return [one["UploadId"] for one in listed.get("Uploads", ())]


def arrived(rig: Any) -> set[int]:
    """The parts that the bucket holds of the upload in progress."""
    found = uploads(rig)
    if not found:
        return set()
    listed = rig.client.list_parts(Bucket=rig.bucket, Key=KEY, UploadId=found[0])
    return {part["PartNumber"] for part in listed.get("Parts", ())}


@pytest.fixture
def killed(rig: Any) -> Any:
    """The supervisor is gone, and all parts but one are there."""
    rig.more += ["--output-compression", "NONE"]
    rig.go.write_text("fill")
    rig.proxy.hold(b"partNumber=5")
    rig.start()
    rig.until(lambda: len(arrived(rig)) == PARTS - 1, "all parts but one")
    rig.signal(signal.SIGKILL)
    rig.end()
    return rig


def test_upload_sends_what_is_missing(killed: Any) -> None:
    rig = killed
    parts = rig.client.list_parts(Bucket=rig.bucket, Key=KEY, UploadId=uploads(rig)[0])["Parts"]
    rig.proxy.held.clear()
    rig.start("upload", "job")
    rig.until(rig.proxy.held.is_set, "the missing part")
    # Nobody answers, and nobody waits for it.
    rig.signal(signal.SIGINT)
    assert rig.end(30) != 0
    rig.proxy.down()
    rig.proxy.up()
    assert arrived(rig) == {part["PartNumber"] for part in parts}
    done = rig.command("upload", "job")
    assert done.returncode == 0, done.stderr
    assert "have arrived" in done.stderr
    stored = rig.client.get_object(Bucket=rig.bucket, Key=KEY)["Body"].read()
    assert stored == bytes(PARTS * (8 << 20))
    assert uploads(rig) == []
    assert list((rig.dir / "uploads").glob("*/*")) == []


def test_delete_takes_it_back(killed: Any) -> None:
    rig = killed
    rig.proxy.down()
    rig.proxy.up()
    done = rig.command("delete", "job")
    assert (done.returncode, done.stderr) == (0, "deleted job\n")
    assert uploads(rig) == []


def test_delete_names_what_it_cannot_take_back(killed: Any) -> None:
    rig = killed
    rig.proxy.down()
    done = rig.command("delete", "job")
    assert done.returncode == 0
    assert "aws s3api abort-multipart-upload" in done.stderr
    assert uploads(rig)[0] in done.stderr
    assert not rig.dir.exists()
