"""Which image a job runs here, and what of this machine its containers get."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hotfire.containers.engine import Engine, connect
from hotfire.containers.values import Image
from hotfire.runtime import instances, plan_image
from hotfire.runtime.errors import ValidationError
from hotfire.runtime.events import Note, Observer
from hotfire.runtime.spec import TrainingJob

DEFAULT = "hotfire"
"""The TrainingImage of a request made from flags without --image: ours for the instance type."""
OWN = {"hotfire-gpu": "gpu", "hotfire-neuron": "neuron"}
_ECR = re.compile(r"\d{12}\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?")


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the caller chose. Bytes."""

    shm_bytes: int | None = None
    limits: bool = False
    must_exist: bool = True
    """False for a plan that another machine is to carry out."""


def choose(
    job: TrainingJob,
    environ: Mapping[str, str],
    wishes: Wishes,
    observer: Observer,
) -> plan_image.Image:
    """Look at the engine and at the image.

    Raises:
        ValidationError: no engine, no such image, or one for another processor.
    """
    name = chosen_name(job)
    kind = job.resource_config.instance_groups[0].instance_type
    if name != job.algorithm_specification.training_image:
        observer(Note(text=f"TrainingImage {DEFAULT} is {name} here"))
    if "VolumeSizeInGB" in job.request.get("ResourceConfig", {}):
        text = "VolumeSizeInGB is not enforced: containers share the disk of this machine"
        observer(Note(text=text))
    try:
        engine = connect(environ)
    except ValidationError as error:
        if wishes.must_exist:
            raise
        observer(Note(text=error.what))
        return plan_image.Image(name=name, memory=_memory_of(kind))
    try:
        image = engine.image(name)
        if image is None and wishes.must_exist:
            raise missing(name)
        image = image or Image(id="")
        _check(engine, name, image, observer)
        chosen = plan_image.Image(
            name=name,
            environment=image.environment,
            memory=engine.memory if wishes.must_exist else _memory_of(kind),
            cpus=engine.cpus,
            shm_bytes=wishes.shm_bytes,
            # The runtime that gives GPUs to containers is there where somebody has installed it.
            gpus=int("nvidia" in engine.runtimes),
            nodes=plan_image.device_nodes(),
            limits=wishes.limits,
        )
    finally:
        engine.close()
    if wishes.limits and (text := plan_image.beyond(chosen, instances.lookup(kind))):
        observer(Note(text=text, warning=True))
    return chosen


def _memory_of(kind: str) -> int:
    """Bytes; 0 where nobody knows."""
    return (instances.lookup(kind).memory_gib or 0) << 30


def chosen_name(job: TrainingJob) -> str:
    """The request's image; for our own default, the one for the instance type's accelerator. Pure."""
    asked = job.algorithm_specification.training_image
    if asked != DEFAULT:
        return asked
    types = [group.instance_type for group in job.resource_config.instance_groups]
    known = [instances.table().get(one) for one in types]
    neuron = any(one is not None and one.neuron_cores for one in known)
    return "hotfire-neuron" if neuron else "hotfire-gpu"


def missing(name: str) -> ValidationError:
    return ValidationError(f"image {name} is not on this machine.", do=how_to_get(name))


def how_to_get(name: str) -> str:
    """The command that brings the image here."""
    if profile := OWN.get(name.partition(":")[0]):
        return f"Build it: hotfire images build {profile}"
    if match := _ECR.match(name):
        login = f"aws ecr get-login-password --region {match['region']}"
        into = f"docker login --username AWS --password-stdin {match[0]}"
        return f"Pull it: {login} | {into} && docker pull {name}"
    return f"Pull it (docker pull {name}) or build it (docker build -t {name} .)."


def _check(engine: Engine, name: str, image: Image, observer: Observer) -> None:
    here = engine.architecture
    if image.architecture and here and image.architecture != here:
        raise ValidationError(
            f"image {name} is for {image.architecture}, this machine is {here}.",
            do=f"Build it here, or for this machine: docker build --platform linux/{here}.",
        )
    if image.user not in ("", "0", "root", "0:0", "root:root"):
        text = (
            f"image {name} runs as user {image.user}: on SageMaker /opt/ml belongs to root, "
            "and such images fail to write there (contract 1.3)"
        )
        observer(Note(text=text, warning=True))
