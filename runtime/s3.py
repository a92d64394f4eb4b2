"""S3 through boto3, which is imported only when a bucket is really touched (0.2 s)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hotfire.runtime.errors import HotfireError, ValidationError
from hotfire.runtime.storage import S3Location

CONNECTIONS = 16
"""Requests in flight at once."""

CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0
"""Without an answer or its next byte, until boto3 asks again."""

S3Client = Any
"""boto3 makes its client classes at run time; there is nothing to name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Object:
    """One object as it was listed; ``etag`` without quotes, ``size`` in bytes."""

    bucket: str
    key: str
    size: int
    etag: str

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    @property
    def folder_marker(self) -> bool:
        """What consoles create for a "folder": a key that ends in ``/`` without content (contract 3.2)."""
        return self.key.endswith("/")


def default_client() -> S3Client:
    """boto3's own chain of credentials, region and endpoint (AWS_PROFILE, AWS_ENDPOINT_URL_S3 ...)."""
    import boto3.session
    from botocore.config import Config

    # A session of our own: boto3's default one keeps the credentials that it found first.
    config = Config(
        max_pool_connections=CONNECTIONS,
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
    )
    return boto3.session.Session().client("s3", config=config)


class S3:
    """S3 on demand; safe to share between threads."""

    def __init__(self, make: Callable[[], S3Client] = default_client) -> None:
        self._make = make

    @cached_property
    def client(self) -> S3Client:
        return self._make()

    def objects(self, at: S3Location) -> list[S3Object]:
        """Every object whose key starts with ``at.key``, in S3's order (UTF-8 bytes).

        Raises:
            ValidationError: no credentials, no such bucket, no access, no connection.
        """
        with errors_as(ValidationError, at.uri, "list"):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=at.bucket, Prefix=at.key
            )
            return [
                S3Object(
                    bucket=at.bucket,
                    key=entry["Key"],
                    size=entry["Size"],
                    etag=entry["ETag"].strip('"'),
                )
                for page in pages
                for entry in page.get("Contents", ())
            ]

    def head(self, at: S3Location) -> S3Object:
        """One object by its whole key.

        Raises:
            ValidationError: it does not exist, or may not be read.
        """
        with errors_as(ValidationError, at.uri, "find"):
            from botocore.exceptions import ClientError

            try:
                found = self.client.head_object(Bucket=at.bucket, Key=at.key)
            except ClientError as error:
                if _code(error) in ("404", "NoSuchKey"):
                    raise ValueError("the object does not exist") from error
                raise
        etag = found["ETag"].strip('"')
        return S3Object(bucket=at.bucket, key=at.key, size=found["ContentLength"], etag=etag)

    def neighbours(self, at: S3Location) -> list[str]:
        """Keys and prefixes beside ``at.key``, or beside its closest parent that has any; at most a page."""
        parent = at.key
        with errors_as(ValidationError, at.uri, "list"):
            while True:
                parent = parent.rstrip("/")
                parent = parent[: parent.rfind("/") + 1]
                page = self.client.list_objects_v2(
                    Bucket=at.bucket, Prefix=parent, Delimiter="/", MaxKeys=1000
                )
                found = [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
                found += [entry["Key"] for entry in page.get("Contents", ())]
                if found or not parent:
                    return found

    def check_bucket(self, at: S3Location) -> None:
        """Refuse a bucket that is not there; one that merely may not be looked at passes.

        Raises:
            ValidationError: no such bucket, no credentials, no connection.
        """
        with errors_as(ValidationError, at.uri, "reach"):
            from botocore.exceptions import ClientError

            try:
                self.client.head_bucket(Bucket=at.bucket)
            except ClientError as error:
                # A role that may only write objects gets 403 here, and is good enough.
                if _code(error) not in ("403", "AccessDenied"):
                    raise


@contextmanager
def errors_as(
    kind: type[HotfireError], uri: str, verb: str, *, kept: Path | None = None, prefix: str = ""
) -> Iterator[None]:
    """boto3's errors as ``kind``: what happened to ``uri``, and what to do."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError, ValueError) as error:
        what, do = explain(error, uri, verb)
        if kept is not None:
            do = f"{do} The local copy is kept: {kept}"
        raise kind(prefix + what, do=do) from error


_BY_CODE = {
    "NoSuchBucket": ("the bucket does not exist", "Check the bucket's name."),
    "NoSuchKey": ("the object does not exist", "Check the key."),
    "PreconditionFailed": (
        "the object changed after it was listed",
        "Start again when nobody writes to it.",
    ),
    "AccessDenied": (
        "access denied",
        "The credentials need s3:ListBucket, s3:GetObject and s3:PutObject there.",
    ),
    "InvalidObjectState": (
        "the object is in an archive storage class",
        "Restore it first (aws s3api restore-object).",
    ),
    "ExpiredToken": ("the credentials have expired", "Renew them (for example: aws sso login)."),
    "InvalidAccessKeyId": ("the access key is unknown", "Check AWS_ACCESS_KEY_ID or AWS_PROFILE."),
    "SignatureDoesNotMatch": (
        "the secret key does not fit the access key",
        "Check AWS_SECRET_ACCESS_KEY or AWS_PROFILE.",
    ),
}
_ALIASES = {
    "403": "AccessDenied",
    "AllAccessDisabled": "AccessDenied",
    "404": "NoSuchBucket",
    "412": "PreconditionFailed",
    "InvalidToken": "ExpiredToken",
    "ExpiredTokenException": "ExpiredToken",
}


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def explain(error: Exception, uri: str, verb: str) -> tuple[str, str]:
    """What happened and what to do, for any error of boto3's."""
    from botocore import exceptions as kinds

    if isinstance(error, kinds.ClientError):
        code = _code(error)
        text = str(error.response.get("Error", {}).get("Message", ""))
        what, do = _BY_CODE.get(
            _ALIASES.get(code, code), (f"{code}: {text}" if code else str(error), "Try again.")
        )
    elif isinstance(
        error,
        kinds.NoCredentialsError
        | kinds.PartialCredentialsError
        | kinds.CredentialRetrievalError
        | kinds.TokenRetrievalError
        | kinds.SSOError
        | kinds.ProfileNotFound,
    ):
        what = f"no AWS credentials ({error})"
        do = "Set AWS_PROFILE, or run `aws configure`; --map s3://PREFIX=DIR runs the job offline."
    elif isinstance(error, kinds.HTTPClientError | kinds.ConnectionError):
        what = f"no connection ({error})"
        do = "Check the network, HTTPS_PROXY and AWS_ENDPOINT_URL_S3."
    else:
        what, do = str(error), "Check the URI and the AWS configuration."
    return f"cannot {verb} {uri}: {what}", do
