"""Fixtures that more than one test file uses. Nothing heavy is imported here: pytest loads this file for every run."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_BUCKETS = itertools.count(1)


@dataclass(frozen=True)
class S3Server:
    """A real S3 API over HTTP on a loopback port."""

    url: str

    def client(self) -> Any:
        """A boto3 client for it, whatever the environment says."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One moto server for the whole run; tests keep apart by :func:`s3_bucket`."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield S3Server(f"http://{host}:{port}")
    server.stop()


@pytest.fixture
def s3_environ(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The process environment through which boto3's default chain finds the server, and nothing of the user's."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return s3_server


@pytest.fixture
def s3_bucket(s3_environ: S3Server) -> str:
    """The name of a fresh, empty bucket of this test."""
    name = f"bucket-{next(_BUCKETS)}"
    s3_environ.client().create_bucket(Bucket=name)
    return name


# --- a container engine ------------------------------------------------------------------------


def _engine(verb: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parent.parent / ".ci" / "engine"
    return subprocess.run([str(script), verb], capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[dict[str, str]]:
    """A running engine, and the environment that finds it; one that was started for the tests ends with them."""
    done = _engine("start")
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    yield {**os.environ, "DOCKER_HOST": "unix:///var/run/docker.sock"}
    if "started" in done.stdout:
        _engine("stop")


@pytest.fixture(scope="session")
def docker_base(docker_engine: dict[str, str]) -> str:
    """A Debian image with Python, made by debootstrap once for each machine: no registry is asked."""
    done = _engine("base")
    assert done.returncode == 0, done.stderr
    return "hotfire-test/base:bookworm"


@pytest.fixture(scope="session")
def docker_train(docker_base: str, docker_engine: dict[str, str], tmp_path_factory: Any) -> str:
    """The base image with this tree's `train` as its ENTRYPOINT."""
    from hotfire.containers import images

    name = "hotfire-test/train:latest"
    root = Path(__file__).parent.parent
    context = tmp_path_factory.mktemp("train-image")
    for folder in ("containers", "entrypoints", "runtime"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / folder, context / "hotfire" / folder, ignore=ignored)
    (context / "Dockerfile").write_text(
        f"FROM {docker_base}\nENV PYTHONPATH=/opt/hotfire PYTHONDONTWRITEBYTECODE=1\n"
        'COPY hotfire /opt/hotfire/hotfire\nENTRYPOINT ["python3", "-m", "hotfire.entrypoints.train"]\n'
    )
    docker, extra = images.buildkit(docker_engine)
    argv = [docker, "build", "-q", "-t", name, str(context)]
    subprocess.run(argv, check=True, capture_output=True, env={**docker_engine, **extra})
    return name
