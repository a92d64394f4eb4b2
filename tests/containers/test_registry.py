"""A push to a real registry, ECR's calls against moto, and errors that come as lines of a stream."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotfire.containers import registry
from hotfire.containers.engine import Engine, connect
from hotfire.runtime.errors import DataError, ValidationError

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def local_registry(
    docker_engine: dict[str, str], docker_base: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Debian's docker-registry in a container, on a port of this machine's loopback (which engines take without TLS)."""
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer

    if shutil.which("apt-get") is None:
        pytest.skip("the registry comes from Debian")
    folder = tmp_path_factory.mktemp("registry")
    subprocess.run(["chmod", "755", str(folder)], check=True)
    if not downloaded(folder):
        subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True)
        assert downloaded(folder), "apt-get cannot download docker-registry"
    (package,) = folder.glob("*.deb")
    subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], check=True)
    (folder / "config.yml").write_text(
        "version: 0.1\nlog: {level: error}\nhttp: {addr: ':5000'}\n"
        "storage: {filesystem: {rootdirectory: /data}}\n"
    )
    # The container that would remove ours after a crash would have to be pulled; `with` removes it.
    testcontainers_config.ryuk_disabled = True
    container = (
        DockerContainer(docker_base, docker_client_kw={"environment": docker_engine})
        .with_volume_mapping(str(folder), "/registry", "ro")
        .with_command("/registry/root/usr/bin/docker-registry serve /registry/config.yml")
        .with_exposed_ports(5000)
    )
    with container:
        where = f"127.0.0.1:{container.get_exposed_port(5000)}"
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://{where}/v2/", timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < end, container.get_logs()
                time.sleep(0.1)
        yield where


def downloaded(folder: Path) -> bool:
    argv = ["apt-get", "download", "docker-registry"]
    return subprocess.run(argv, cwd=folder, capture_output=True, check=False).returncode == 0


@pytest.fixture
def engine(docker_engine: dict[str, str]) -> Iterator[Engine]:
    with contextlib.closing(connect(docker_engine)) as connected:
        yield connected


@pytest.fixture
def tiny(engine: Engine, docker_engine: dict[str, str]) -> Iterator[str]:
    """An image of one small layer."""
    docker = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"
    import io
    import tarfile

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        info = tarfile.TarInfo("hello")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"hello"))
    argv = [docker, "import", "-", "hotfire-test/tiny:1"]
    subprocess.run(argv, input=data.getvalue(), check=True, capture_output=True, env=docker_engine)
    yield "hotfire-test/tiny:1"
    engine.remove_image("hotfire-test/tiny:1")


def test_push_gives_the_digest_of_a_docker_manifest(
    engine: Engine, tiny: str, local_registry: str, tmp_path: Path
) -> None:
    lines: list[str] = []
    digest = registry.push(engine, tiny, f"{local_registry}/my/tiny", "v1", progress=lines.append)
    assert any("Pushed" in line for line in lines)
    request = urllib.request.Request(
        f"http://{local_registry}/v2/my/tiny/manifests/{digest}",
        headers={"Accept": registry.DOCKER_V2},
    )
    with urllib.request.urlopen(request) as answer:
        kind = answer.headers["Content-Type"]
        manifest = json.load(answer)
    assert kind == manifest["mediaType"] == registry.DOCKER_V2
    registry.refuse_other_manifests(kind)
    # The name that the push needed is gone again.
    assert engine.image(f"{local_registry}/my/tiny:v1") is None
    assert engine.image(tiny) is not None


def test_a_registry_that_is_not_there_is_an_error(engine: Engine, tiny: str) -> None:
    with pytest.raises(DataError, match="refused"):
        registry.push(engine, tiny, "127.0.0.1:1/my/tiny", "v1")


def test_pushing_what_is_not_there(engine: Engine) -> None:
    with pytest.raises(ValidationError, match="not on this machine"):
        registry.push(engine, "hotfire-test/none", "127.0.0.1:1/x", "v1")


def test_an_error_in_the_stream_is_an_error() -> None:
    stream = [
        {"status": "Preparing", "id": "a"},
        {"errorDetail": {"message": "denied: User is not authorized"}, "error": "denied"},
    ]
    with pytest.raises(DataError, match="not authorized") as caught:
        registry.digest_of(iter(stream), "r", lambda line: None)
    assert "ecr:PutImage" in caught.value.do or "PutImage" in caught.value.do


def test_a_stream_without_a_digest_is_an_error() -> None:
    with pytest.raises(DataError, match="without a digest"):
        registry.digest_of(iter([{"status": "done"}]), "r", lambda line: None)


def test_an_oci_manifest_is_refused() -> None:
    with pytest.raises(DataError, match="oci"):
        registry.refuse_other_manifests("application/vnd.oci.image.manifest.v1+json")


@pytest.fixture
def ecr(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import boto3
    from moto import mock_aws

    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield boto3.client("ecr", region_name="us-east-1")


def test_the_repository_is_created_once(ecr: Any) -> None:
    first = registry.repository_uri(ecr, "my/neuron")
    assert first == registry.repository_uri(ecr, "my/neuron")
    assert first.endswith(".dkr.ecr.us-east-1.amazonaws.com/my/neuron")
    described = ecr.describe_repositories()["repositories"]
    assert [one["imageScanningConfiguration"]["scanOnPush"] for one in described] == [True]
    with pytest.raises(ValidationError, match="no name"):
        registry.repository_uri(ecr, "My/Neuron")


def test_login_and_push_end_in_a_digest_uri(
    ecr: Any, engine: Engine, tiny: str, local_registry: str
) -> None:
    login = registry.authorization(ecr)
    assert login.username == "AWS" and login.password
    pushed = registry.push_to_ecr(engine, ecr, tiny, "my/neuron", "v2", through=local_registry)
    assert pushed.uri.startswith("123456789012.dkr.ecr.us-east-1.amazonaws.com/my/neuron@sha256:")
    assert (
        not (Path.home() / ".docker" / "config.json").exists()
        or login.password not in (Path.home() / ".docker" / "config.json").read_text()
    )


def test_the_manifest_is_read_back_from_ecr(ecr: Any) -> None:
    registry.repository_uri(ecr, "my/gpu")
    manifest = {
        "schemaVersion": 2,
        "mediaType": registry.DOCKER_V2,
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "size": 1,
            "digest": "sha256:0",
        },
        "layers": [],
    }
    put = ecr.put_image(repositoryName="my/gpu", imageManifest=json.dumps(manifest), imageTag="v1")
    digest = put["image"]["imageId"]["imageDigest"]
    kind, _ = registry.manifest(ecr, "my/gpu", digest)
    assert kind == registry.DOCKER_V2
