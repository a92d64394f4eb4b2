"""What a TrainingImage says about itself: the names of AWS's deep-learning containers, read and never pulled."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(?P<name>.+)"
)
_REPOSITORY = re.compile(
    r"(?P<family>huggingface-pytorch|huggingface-tensorflow|pytorch|tensorflow|mxnet|jax)"
    r"(?:-trcomp)?-training(?:-(?P<neuron>neuronx?))?"
)
_TITLES = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "mxnet": "MXNet", "jax": "JAX"}


@dataclass(frozen=True, kw_only=True)
class Container:
    """A deep-learning container of AWS. A text is empty where the name does not say."""

    framework: str
    """``pytorch``, ``tensorflow``, ``mxnet`` or ``jax``."""
    version: str
    device: str
    """``neuron``, ``gpu`` or ``cpu``."""
    python: str
    """``3.10``."""
    transformers: str = ""
    compiler: bool = False
    """An image of SageMaker Training Compiler."""

    def __str__(self) -> str:
        title = _TITLES[self.framework]
        words = [f"{title} {self.version}".strip()]
        if self.transformers:
            words.append(f"Transformers {self.transformers}")
        if self.compiler:
            words.append("Training Compiler")
        words.append({"neuron": "Neuron", "gpu": "GPU", "cpu": "CPU"}.get(self.device, "CPU"))
        if self.python:
            words.append(f"Python {self.python}")
        return ", ".join(words)


def container(uri: str) -> Container | None:
    """What the URI of an image stands for; None for an image that is not one of AWS's training containers."""
    found = _ECR.fullmatch(uri)
    if found is None:
        return None
    path, _, tag = found["name"].partition(":")
    repository = path.rpartition("/")[2]
    match = _REPOSITORY.fullmatch(repository)
    if match is None:
        return None
    parts = tag.split("@")[0].split("-")
    words = dict(_word(part) for part in parts[1:])
    framework = match["family"].rpartition("-")[2]
    device = "neuron" if match["neuron"] or words.get("device") == "neuron" else words.get("device")
    return Container(
        framework=framework,
        version=parts[0] if re.fullmatch(r"\d+(\.\d+)*", parts[0]) else "",
        device=device or "",
        python=words.get("python", ""),
        transformers=words.get("transformers", ""),
        compiler="trcomp" in repository,
    )


def _word(part: str) -> tuple[str, str]:
    """One part of a tag, named: ``gpu``, ``py310``, ``transformers4.36.0``; what else there is goes unnamed."""
    if part in ("gpu", "cpu"):
        return "device", part
    if part.startswith("neuron"):
        return "device", "neuron"
    if python := re.fullmatch(r"py(\d)(\d+)", part):
        return "python", f"{python[1]}.{python[2]}"
    if part.startswith("transformers"):
        return "transformers", part.removeprefix("transformers")
    return "", part


def differences(wanted: Container, versions: dict[str, str], python: str) -> list[str]:
    """Where what runs here is not what the image holds, down to the minor version; what is not known is not told."""
    names = {"pytorch": "torch", "tensorflow": "tensorflow", "mxnet": "mxnet", "jax": "jax"}
    told = []
    for name, version in (
        (names[wanted.framework], wanted.version),
        ("transformers", wanted.transformers),
    ):
        here = versions.get(name, "")
        if version and here and _minor(here) != _minor(version):
            told.append(f"{name} is {here} here and {version} in the image")
    if wanted.python and python and _minor(python) != wanted.python:
        told.append(f"Python is {_minor(python)} here and {wanted.python} in the image")
    return told


def _minor(version: str) -> str:
    return ".".join(version.partition("+")[0].split(".")[:2])
