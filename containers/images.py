"""Building hotfire's images: the same as ``docker build -f Dockerfile.gpu``, with labels, progress and checks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hotfire.runtime.errors import DataError, ValidationError

DRIVER_2_26 = {
    # The Neuron SDK 2.29.1: its runtime still works with drivers up to 2.26 (docs/images.md).
    "NEURON_RUNTIME": "2.31.24.0",
    "NEURON_COLLECTIVES": "2.31.24.0",
    "NEURON_TOOLS": "2.29.22.0",
    "TORCH_NEURONX": "2.9.0.2.13.26312",
    "NEURONX_CC": "2.24.8799.0",
    "LIBNEURONXLA": "2.2.16408.0",
}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A Dockerfile with some of its arguments."""

    dockerfile: str
    arguments: Mapping[str, str] = field(default_factory=dict)


PROFILES = {
    "gpu": Profile(dockerfile="Dockerfile.gpu"),
    "gpu-2.8": Profile(dockerfile="Dockerfile.gpu"),
    "gpu-inductor": Profile(dockerfile="Dockerfile.gpu"),
    "neuron": Profile(dockerfile="Dockerfile.neuron"),
    "neuron-2.29": Profile(dockerfile="Dockerfile.neuron", arguments=DRIVER_2_26),
}
FAMILIES = {"gpu": ("gpu", "gpu-2.8", "gpu-inductor"), "neuron": ("neuron", "neuron-2.29")}


@dataclass(frozen=True, kw_only=True)
class Build:
    """What is asked for. ``arguments`` are further build arguments, ``ca`` a file with certificate authorities."""

    family: str
    source: Path
    profile: str = ""
    base_image: str = ""
    efa: bool = False
    tag: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    ca: Path | None = None
    host_network: bool = False

    @property
    def name(self) -> str:
        """The image's name: ``hotfire-gpu``, and a tag for a profile that is not the family's own."""
        if self.tag:
            return self.tag
        profile = self.profile or self.family
        other = profile != self.family
        return f"hotfire-{self.family}" + (
            f":{profile.removeprefix(self.family + '-')}" if other else ""
        )


def command(build: Build, docker: str, *, version: str, revision: str) -> list[str]:
    """The ``docker build`` line. Pure.

    Raises:
        ValidationError: no such profile, or EFA for an image that has none.
    """
    profile = build.profile or build.family
    if profile not in FAMILIES[build.family]:
        raise ValidationError(
            f"{build.family} has no profile {profile}.",
            do=f"It has: {', '.join(FAMILIES[build.family])}.",
        )
    if build.efa and build.family != "neuron":
        raise ValidationError("EFA is part of the neuron image alone.", do="Leave --efa out.")
    chosen = PROFILES[profile]
    arguments = {"PROFILE": profile, "VERSION": version, "REVISION": revision, **chosen.arguments}
    if build.base_image:
        arguments["BASE_IMAGE"] = build.base_image
    if build.efa:
        arguments["WITH_EFA"] = "1"
    arguments |= build.arguments
    argv = [docker, "build", "-f", str(build.source / chosen.dockerfile), "-t", build.name]
    argv += [word for pair in sorted(arguments.items()) for word in ("--build-arg", "=".join(pair))]
    if build.ca is not None:
        argv += ["--secret", f"id=cacert,src={build.ca}"]
    if build.host_network:
        argv.append("--network=host")
    return [*argv, str(build.source)]


def run(build: Build, *, version: str, environ: Mapping[str, str]) -> str:
    """Build it on this terminal; the image's name.

    Raises:
        ValidationError: there is no source tree, or no docker command with BuildKit.
        DataError: the build failed.
    """
    for name in (PROFILES[build.family].dockerfile, "runtime", ".ci/locks"):
        if not (build.source / name).exists():
            raise ValidationError(
                f"{build.source} has no {name}: images are built from hotfire's source tree.",
                do="Clone it, and give --source DIRECTORY or run this inside.",
            )
    docker, extra = buildkit(environ)
    argv = command(build, docker, version=version, revision=_revision(build.source))
    done = subprocess.run(argv, env={**environ, **extra}, check=False)
    if done.returncode != 0:
        raise DataError(
            f"docker build ended with {done.returncode}; its last lines say why.",
            do="Behind a proxy with its own certificates: --ca-file FILE --host-network.",
        )
    return build.name


def buildkit(environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """A docker command whose builder is BuildKit (the Dockerfiles mount caches and secrets), and what it needs set.

    Since 23.0 the command needs the buildx plugin for it; older ones have it built in.
    """
    commands = list(_commands(environ.get("PATH", os.defpath)))
    for docker in commands:
        version = _output([docker, "--version"])
        match = re.search(r"version (\d+)\.", version)
        if match and int(match[1]) < 23:
            return docker, {"DOCKER_BUILDKIT": "1"}
        if "buildx" in _output([docker, "buildx", "version"]):
            # No attestations: they turn the image into an index, which SageMaker does not take.
            return docker, {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
    if not commands:
        raise ValidationError("there is no docker command.", do="Install Docker's command line.")
    raise ValidationError(
        f"{commands[0]} cannot use BuildKit: its buildx plugin is missing.",
        do="Install it (apt install docker-buildx or docker-buildx-plugin).",
    )


def _commands(path: str) -> Iterator[str]:
    seen = set()
    for folder in (*path.split(os.pathsep), "/usr/bin"):
        found = shutil.which("docker", path=folder)
        if found and found not in seen:
            seen.add(found)
            yield found


def _output(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def _revision(source: Path) -> str:
    git = shutil.which("git")
    found = _output([git, "-C", str(source), "describe", "--always", "--dirty"]) if git else ""
    return found.strip() or "unknown"
