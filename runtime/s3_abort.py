"""Taking back uploads in parts that nobody will go on with: S3 charges for the parts until then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hotfire.runtime.s3 import S3
from hotfire.runtime.uploads import Begun, Uploads


def take_back(s3: S3, uploads: Uploads) -> list[Begun]:
    """Take back all uploads of an owner who will not go on with them.

    Returns:
        Those that S3 still has, with their records: after a first one that does not go no other is tried.
    """
    left: list[Begun] = []
    for begun in uploads.all():
        if left or not abort(s3, begun):
            left.append(begun)
        else:
            uploads.forget(begun.to)
    return left


def take_all_back(directory: Path) -> list[Begun]:
    """:func:`take_back` for all owners below a job's ``uploads``."""
    s3 = S3()
    return [
        begun for path in sorted(directory.glob("*/")) for begun in take_back(s3, Uploads(path))
    ]


def abort(s3: S3, begun: Begun) -> bool:
    """Whether S3 has none of the upload's parts any more."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        s3.client.abort_multipart_upload(**where(begun))
    except ClientError as error:
        return code(error) in ("NoSuchUpload", "NoSuchBucket")
    except (BotoCoreError, ValueError):
        return False
    return True


def where(begun: Begun) -> dict[str, str]:
    """What every request about an upload names."""
    return {"Bucket": begun.bucket, "Key": begun.key, "UploadId": begun.upload_id}


def code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
