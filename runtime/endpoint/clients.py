"""What clients of an endpoint need to know: variables for a shell, and the files that the SDKs look at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hotfire.runtime.errors import ValidationError
from hotfire.runtime.store import JobLock, write_json

ACCOUNT = "123456789012"
ROLE_ARN = f"arn:aws:iam::{ACCOUNT}:role/hotfire"
KEY = "hotfire"
"""Both halves of the key pair: no signature is checked."""
# What would lead a client elsewhere, or to other credentials than the ones that are set.
UNSET = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN")
SERVICES = ("SAGEMAKER", "S3", "STS", "IAM", "LOGS", "CLOUDWATCH", "ECR", "SAGEMAKER_RUNTIME")


@dataclass(frozen=True, kw_only=True)
class Address:
    """A running endpoint."""

    url: str
    region: str
    s3_url: str = ""
    """Where S3 is, when it is not here; the caller's own credentials are kept then."""

    @property
    def bucket(self) -> str:
        """The SDKs' default bucket."""
        return f"sagemaker-{self.region}-{ACCOUNT}"


def directory(home: Path) -> Path:
    """Where the endpoint of a store keeps what clients read."""
    return home / "endpoint"


def announce(home: Path, address: Address) -> JobLock:
    """Write down where the endpoint is, for :func:`find`; it counts as long as the lock is held.

    Raises:
        ValidationError: another endpoint of the same store runs.
    """
    where = directory(home)
    where.mkdir(parents=True, exist_ok=True)
    lock = JobLock.take(where / "lock")
    if lock is None:
        raise ValidationError(
            f"an endpoint for {home} is running already.",
            do="Use that one (hotfire env), stop it, or set HOTFIRE_HOME to another directory.",
        )
    write_json(where / "address.json", asdict(address))
    (where / "sagemaker.yaml").write_text(sdk_config(address), encoding="utf-8")
    write_json(where / "resource-metadata.json", {"ExecutionRoleArn": ROLE_ARN})
    return lock


def find(home: Path) -> Address:
    """The running endpoint of a store.

    Raises:
        ValidationError: there is none.
    """
    where = directory(home)
    lock = JobLock.take(where / "lock") if where.is_dir() else None
    if lock is not None or not (where / "address.json").is_file():
        if lock is not None:
            lock.close()
        raise ValidationError(f"no endpoint for {home} is running.", do="Start it: hotfire serve")
    return Address(**json.loads((where / "address.json").read_text(encoding="utf-8")))


def variables(address: Address, home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What to set. With S3 elsewhere, credentials that are there already stay."""
    found = {
        "AWS_ENDPOINT_URL": address.url,
        "AWS_DEFAULT_REGION": address.region,
        "AWS_REGION": address.region,
        "AWS_EC2_METADATA_DISABLED": "true",
        "SAGEMAKER_USER_CONFIG_OVERRIDE": str(directory(home) / "sagemaker.yaml"),
        # The role that is there allows everything; v3 asks for a policy simulation before each upload.
        "SAGEMAKER_VALIDATE_ROLE": "false",
    }
    no_proxy = [word for word in environ.get("NO_PROXY", "").split(",") if word]
    if "127.0.0.1" not in no_proxy:
        found["NO_PROXY"] = found["no_proxy"] = ",".join([*no_proxy, "127.0.0.1"])
    if address.s3_url:
        found["AWS_ENDPOINT_URL_S3"] = address.s3_url
        return found
    return {**found, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}


def unset(address: Address) -> tuple[str, ...]:
    """What to remove: other endpoints, and other credentials unless S3 needs them."""
    urls = [f"AWS_ENDPOINT_URL_{name}" for name in SERVICES if name != "S3" or not address.s3_url]
    return (*urls, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", *(() if address.s3_url else UNSET))


def environment(address: Address, home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a client: ``environ`` with everything set and unset."""
    gone = unset(address)
    kept = {name: value for name, value in environ.items() if name not in gone}
    return {**kept, **variables(address, home, environ)}


def sdk_config(address: Address) -> str:
    """The SDKs' configuration file: they would ask the real STS for the bucket's name, and send telemetry."""
    return f"""\
SchemaVersion: '1.0'
SageMaker:
  PythonSDK:
    Modules:
      TelemetryOptOut: true
      Session:
        DefaultS3Bucket: {address.bucket}
"""
