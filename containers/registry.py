"""Pushing an image to ECR, or to any registry: the engine's stream read for errors, the manifest's type checked."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hotfire.containers.engine import Engine
from hotfire.runtime.errors import DataError, ValidationError

DOCKER_V2 = "application/vnd.docker.distribution.manifest.v2+json"
"""The one manifest type that all of SageMaker takes: it rejects OCI's for models and endpoints."""


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """``uri`` is by digest: what to write into TrainingImage."""

    uri: str
    tag: str
    digest: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Login:
    registry: str
    username: str
    password: str


def push(
    engine: Engine,
    image: str,
    repository: str,
    tag: str,
    *,
    login: Login | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> str:
    """Name ``image`` REPOSITORY:TAG and push it; its digest. Nothing is kept in ~/.docker.

    Raises:
        ValidationError: there is no such image.
        DataError: the registry or the engine refused, which the engine reports in the stream only.
    """
    found = engine.image(image)
    if found is None:
        raise ValidationError(f"image {image} is not on this machine.", do="See docker images.")
    existed = engine.image(f"{repository}:{tag}") is not None
    engine.tag(image, repository, tag)
    try:
        credentials = {"username": login.username, "password": login.password} if login else None
        return digest_of(engine.push(repository, tag, credentials), repository, progress)
    finally:
        if not existed:
            engine.remove_image(f"{repository}:{tag}")


def digest_of(stream: Any, repository: str, progress: Callable[[str], None]) -> str:
    """Read a push's lines to the end.

    Raises:
        DataError: one of them is an error, or none has the digest.
    """
    digest = ""
    for line in stream:
        if "error" in line or "errorDetail" in line:
            detail = line.get("errorDetail") or {}
            text = str(detail.get("message") or line.get("error"))
            raise DataError(f"pushing to {repository} failed: {text}", do=_advice(text))
        if "aux" in line and line["aux"].get("Digest"):
            digest = line["aux"]["Digest"]
        elif line.get("status") and not line.get("progress"):
            progress(f"{line.get('id', '')} {line['status']}".strip())
    if not digest:
        raise DataError(f"pushing to {repository} ended without a digest.", do="Try it again.")
    return digest


def _advice(text: str) -> str:
    low = text.lower()
    if "denied" in low or "unauthorized" in low or "no basic auth" in low:
        return "The role needs ecr:InitiateLayerUpload, UploadLayerPart, CompleteLayerUpload, PutImage and BatchCheckLayerAvailability."
    if "immutable" in low:
        return "Choose another --tag: tags of this repository cannot be moved."
    return "See the registry's log, and that this machine reaches it."


# --- ECR ---------------------------------------------------------------------------------------


def push_to_ecr(
    engine: Engine,
    client: Any,
    image: str,
    name: str,
    tag: str,
    *,
    progress: Callable[[str], None] = lambda line: None,
    through: str = "",
) -> Pushed:
    """Create the repository if it is absent, log in, push, and check what SageMaker will read.

    Args:
        client: of ``boto3.client("ecr")``.
        through: the registry's address, where it is not the one that ECR names (a local stand-in).
    """
    uri = repository_uri(client, name)
    login = authorization(client)
    target = f"{through}/{name}" if through else uri
    digest = push(engine, image, target, tag, login=login, progress=progress)
    size = 0
    if not through:
        kind, size = manifest(client, name, digest)
        refuse_other_manifests(kind)
    return Pushed(uri=f"{uri}@{digest}", tag=tag, digest=digest, bytes=size)


def repository_uri(client: Any, name: str) -> str:
    """The repository's address; it is created (scan on push) where there is none."""
    if not re.fullmatch(r"(?:[a-z0-9]+(?:[._-][a-z0-9]+)*/)*[a-z0-9]+(?:[._-][a-z0-9]+)*", name):
        raise ValidationError(
            f"{name!r} is no name of a repository.", do="Give for example my/neuron."
        )
    try:
        made = client.create_repository(
            repositoryName=name, imageScanningConfiguration={"scanOnPush": True}
        )
        return str(made["repository"]["repositoryUri"])
    except client.exceptions.RepositoryAlreadyExistsException:
        found = client.describe_repositories(repositoryNames=[name])
        return str(found["repositories"][0]["repositoryUri"])


def authorization(client: Any) -> Login:
    """A login of twelve hours; it stays in memory."""
    data = client.get_authorization_token()["authorizationData"][0]
    user, _, password = base64.b64decode(data["authorizationToken"]).decode().partition(":")
    registry = data["proxyEndpoint"].removeprefix("https://")
    return Login(registry=registry, username=user, password=password)


def manifest(client: Any, name: str, digest: str) -> tuple[str, int]:
    """The pushed image's manifest type, and its bytes in the registry."""
    found: Mapping[str, Any] = client.describe_images(
        repositoryName=name, imageIds=[{"imageDigest": digest}]
    )["imageDetails"][0]
    return str(found.get("imageManifestMediaType") or ""), int(found.get("imageSizeInBytes") or 0)


def refuse_other_manifests(kind: str) -> None:
    """Raises DataError for a manifest that SageMaker does not take."""
    if kind != DOCKER_V2:
        raise DataError(
            f"the pushed manifest is {kind or 'of unknown type'}; SageMaker takes {DOCKER_V2}.",
            do="Build without attestations (--provenance=false --sbom=false), for linux/amd64 alone, then push again.",
        )
