"""From everything ready to the last worker's end."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hotfire.entrypoints.train import neuron, talk
from hotfire.entrypoints.train.children import Children
from hotfire.entrypoints.train.devices import Kind as Accelerator
from hotfire.entrypoints.train.environ import (
    passable,
    torchrun_command,
    worker_command,
    worker_environment,
)
from hotfire.entrypoints.train.prepare import Ready
from hotfire.entrypoints.train.program import Kind, Program
from hotfire.entrypoints.train.talk import say
from hotfire.entrypoints.train.workers import Ended, OneProcess, TorchrunCrew, supervise
from hotfire.runtime.errors import HotfireError, ValidationError
from hotfire.runtime.layout import MlTree
from hotfire.runtime.training_env import BUILT_IN_PROGRAM, Launcher

_LOCKED, _UNLOCKED = "hotfire-worker-", "hotfire-new-"

_GRACE = 120.0
"""Seconds between SIGTERM and SIGKILL on SageMaker (contract 5.4)."""


class CannotExecute(HotfireError):
    """The program itself could not be started; ``code`` is what a shell ends with then."""

    def __init__(self, argv: Sequence[str], error: OSError) -> None:
        super().__init__(f"{argv[0]} cannot be executed: {error.strerror}")
        self.code = 127 if error.errno == errno.ENOENT else 126


def run(
    ready: Ready, tree: MlTree, children: Children, environment: Mapping[str, str]
) -> tuple[int, str]:
    """Start the workers and wait for them: the exit code, and the reason if it is not 0.

    Raises:
        CannotExecute: the program could not be started.
    """
    with _scratch() as directory:
        argv = command(ready, str(directory / "log"))
        settings, left_out = passable(
            worker_environment(
                {**environment, **ready.python.variables, "HOTFIRE_WORKER_DIR": str(directory)},
                ready.env,
                ready.launch,
                ready.machine,
                master=ready.master,
            )
        )
        for line in left_out:
            say(line)
        if ready.machine.kind is Accelerator.NEURON:
            say(neuron.report(environment, settings))
            _allow_open_files(neuron.OPEN_FILES)
        shown = talk.command_line([*_name(ready), *ready.env.arguments()])
        say(f"running {shown}")
        kills = _memory_kills()
        ended = _start_and_wait(argv, settings, ready, tree, children, directory)
        if ended.exit_code == 0:
            return 0, ""
        from hotfire.entrypoints.train import failure

        text = failure.explain(ended, shown, tree.code, out_of_memory=_memory_kills() > kills)
        return ended.exit_code, text


def _allow_open_files(wanted: int) -> None:
    """As many as the container may have: what we start inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


@contextmanager
def _scratch() -> Iterator[Path]:
    """A directory for the workers' records, locked while we live.

    In memory where possible: a full disk must not keep the workers from saying so. /dev/shm may be shared with other
    containers, so what one that was killed has left there goes with the next one.
    """
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK | os.X_OK) else Path("/tmp")
    _sweep(place)
    name = f"{os.getpid()}-{os.urandom(6).hex()}"
    unlocked = place / f"{_UNLOCKED}{name}"
    unlocked.mkdir(mode=0o700)
    lock = _lock(unlocked)
    directory = unlocked.rename(place / f"{_LOCKED}{name}")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _lock(directory: Path) -> int | None:
    """A descriptor that holds ``directory``'s lock; None if somebody else has it, or it is not ours."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep(place: Path) -> None:
    for directory in place.glob(f"{_LOCKED}*"):
        if (lock := _lock(directory)) is not None:
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)


def _start_and_wait(
    argv: Sequence[str],
    settings: Mapping[str, str],
    ready: Ready,
    tree: MlTree,
    children: Children,
    directory: Path,
) -> Ended:
    try:
        pid = children.spawn(argv, env=settings, cwd=tree.code)
    except OSError as error:
        raise CannotExecute(argv, error) from error
    crew: OneProcess | TorchrunCrew
    if ready.launch.launcher is Launcher.TORCHRUN:
        crew = TorchrunCrew(pid, directory)
    else:
        group = ready.program is not None and ready.program.kind is Kind.COMMAND
        crew = OneProcess(pid, directory, group=group)
    return supervise(crew, children, _grace(settings))


def _grace(environment: Mapping[str, str]) -> float:
    """The workers' share of the platform's time: enough less to collect them and write why."""
    try:
        given = float(environment.get("HOTFIRE_GRACE") or _GRACE)
    except ValueError:
        given = _GRACE
    return max(given - min(5.0, given * 0.2), 0.0)


def command(ready: Ready, log_dir: str) -> list[str]:
    """The argv of the one process that we start."""
    arguments = ready.env.arguments()
    program = ready.program
    if program is not None and program.kind is Kind.COMMAND:
        return [*_executable(program), *arguments]
    if program is None:
        target = ["-m", BUILT_IN_PROGRAM, *arguments]
    elif program.kind is Kind.PACKAGE:
        target = ["-m", program.module, *arguments]
    else:
        target = [program.name, *arguments]
    if ready.launch.launcher is Launcher.TORCHRUN:
        python = ready.python.executable
        argv = torchrun_command(python, ready.launch, ready.master, target, log_dir)
        return [*ready.wrapper, *argv]
    return worker_command(ready.python.executable, target)


def _executable(program: Program) -> list[str]:
    """``./name``, or through its interpreter where it has none or may not be executed."""
    path = program.path
    first = path.open("rb").readline(256)
    if first.startswith(b"#!") and first.endswith(b"\r\n"):
        raise ValidationError(
            f"{program.name} has Windows line endings, so that its interpreter is not found.",
            do=f"Convert it: sed -i 's/\\r$//' {program.name}",
        )
    try:
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    except OSError:
        say(f"{program.name} cannot be made executable: run through its interpreter")
    if not first.startswith(b"#!") and program.name.endswith(".sh"):
        return ["/bin/sh", f"./{program.name}"]
    if os.access(path, os.X_OK):
        return [f"./{program.name}"]
    return [*first[2:].decode(errors="replace").split(), f"./{program.name}"]


def _name(ready: Ready) -> list[str]:
    return [ready.program.name] if ready.program else ["-m", BUILT_IN_PROGRAM]


def _memory_kills() -> int:
    """How often the kernel killed something in this container for lack of memory (cgroup v2)."""
    try:
        lines = Path("/sys/fs/cgroup/memory.events").read_text().split()
        return int(lines[lines.index("oom_kill") + 1])
    except (OSError, ValueError, IndexError):
        return 0
