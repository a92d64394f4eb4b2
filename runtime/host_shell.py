"""A command in a host of a job: in the live one, or in one that is prepared anew."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from hotfire.runtime import (
    channels,
    host_files,
    plan,
    runner,
)
from hotfire.runtime.description import host_dirs
from hotfire.runtime.events import ignore
from hotfire.runtime.layout import JobDir
from hotfire.runtime.preparation import prepare
from hotfire.runtime.surroundings import Options, Surroundings


def shell(
    name: str, host: str, command: tuple[str, ...], around: Surroundings, say: Callable[[str], None]
) -> int:
    """A shell (or ``command``) in a host of a job; the exit code is the command's.

    In a live host; else in a host prepared afresh from the job's request and options, which is gone afterwards.

    Raises:
        ResourceNotFound: no such job or host.
    """
    host_dirs(name, around, host=host, attempt=None)
    argv = command or (around.environ.get("SHELL", "/bin/sh"), "-i")
    terminal = {key: around.environ[key] for key in ("TERM", "COLORTERM") if key in around.environ}
    job_dir = around.store.open(name)
    attempts = job_dir.attempts()
    pid = host_files.live_pid(job_dir.host(attempts[-1], host).pid) if attempts else None
    options = Options.from_json(json.loads(job_dir.options.read_text(encoding="utf-8")))
    docker = options.backend == "docker"
    if docker:
        from hotfire.runtime.backends import docker_shell
    else:
        from hotfire.runtime.backends import entering
    if pid is not None:
        say(f"{host} of {name} is running: this shell is inside it.")
        if docker:
            found = docker_shell.container_of(name, host, job_dir.root, around.environ)
            return docker_shell.enter(found, command, around.environ)
        return entering.enter(pid, argv, {**environment_of(pid), **terminal})
    prepared = prepare(around.store.request(name), options, around)
    say(
        f"{name} is not running: a fresh {host} with its inputs and no outputs; it is gone when you leave."
    )
    with ExitStack() as undo:
        around.store.home.mkdir(parents=True, exist_ok=True)
        folder = undo.enter_context(
            tempfile.TemporaryDirectory(prefix="shell-", dir=around.store.home)
        )
        fresh = JobDir(Path(folder))
        dirs = {one: fresh.host(1, one) for one in prepared.job.resource_config.hosts}
        session = undo.enter_context(runner.open_session(prepared, 1, dirs, ignore))
        undo.enter_context(channels.materialise(prepared.inputs, ignore, dirs))
        planned = runner.make_plan(prepared, session.places, dirs, plan.MASTER_PORT)
        (chosen,) = (one for one in planned if one.spec.host == host)
        host_files.write_files([chosen])
        idle = ("/bin/sh", "-c", "while :; do sleep 3600; done")
        spec = replace(chosen.spec, argv=idle)
        if docker:
            spec = replace(spec, entrypoint=idle[:1], argv=idle[1:])
        container = session.start(runner.with_values(spec, prepared.passed))
        undo.callback(container.remove)
        if docker:
            return docker_shell.enter(container.id, command, around.environ)
        return entering.enter(
            container.pid, argv, {**chosen.spec.env, **prepared.passed, **terminal}
        )


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a live process of ours was started with."""
    raw = Path(f"/proc/{pid}/environ").read_bytes()
    pairs = (os.fsdecode(item).partition("=") for item in raw.split(b"\0") if b"=" in item)
    return {key: value for key, _, value in pairs}
