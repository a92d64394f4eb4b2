"""A program of the user's inside a container host, on the user's terminal, by Docker's own command line.

Whoever may use the engine may do that; to enter a container's namespaces oneself takes root.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from hotfire.containers.address import address
from hotfire.containers.engine import connect
from hotfire.runtime.backends.docker_labels import DIRECTORY, HOST, JOB
from hotfire.runtime.errors import ResourceNotFound, ValidationError

_SHELL = ("/bin/sh", "-c", "command -v bash >/dev/null && exec bash -i || exec sh -i")


def container_of(job: str, host: str, directory: Path, environ: Mapping[str, str]) -> str:
    """The id of the container that a host of the job in ``directory`` is.

    Raises:
        ResourceNotFound: there is none.
    """
    with closing(connect(environ)) as engine:
        found = engine.owned(f"{JOB}={job}")
    for one in found:
        mine = Path(one.labels.get(DIRECTORY, "")).is_relative_to(directory)
        if one.kind == "container" and one.labels.get(HOST) == host and mine:
            return one.id
    raise ResourceNotFound(f"{host} of {job} has no container any more.", do="See hotfire ps.")


def enter(container: str, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run ``command``, or a shell where there is none; its exit code.

    Raises:
        ValidationError: Docker's command line is not installed.
    """
    docker = shutil.which("docker", path=environ.get("PATH"))
    if docker is None:
        raise ValidationError(
            "there is no docker command, which a shell in a container needs.",
            do="Install Docker's command line.",
        )
    flags = ["--interactive", *(["--tty"] if sys.stdin.isatty() else [])]
    flags += [f"--env={name}" for name in ("TERM", "COLORTERM") if name in environ]
    there = {**environ, "DOCKER_HOST": address(environ)}
    argv = [docker, "exec", *flags, container, *(command or _SHELL)]
    return subprocess.run(argv, env=there, check=False).returncode
