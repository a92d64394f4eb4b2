"""Everything before the workers start: configuration, code, packages, hosts. Refuses before it does."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hotfire.entrypoints.train import hosts, neuron
from hotfire.entrypoints.train.children import Children
from hotfire.entrypoints.train.config import interface_names, read_config
from hotfire.entrypoints.train.devices import count_devices, kind_of, usable_cpus
from hotfire.entrypoints.train.environ import Machine, Python
from hotfire.entrypoints.train.program import Kind, Program, find_program
from hotfire.entrypoints.train.talk import say
from hotfire.runtime.errors import UnsupportedError, ValidationError
from hotfire.runtime.layout import MlTree
from hotfire.runtime.training_env import (
    BUILT_IN_PROGRAM,
    MASTER_PORT,
    Compiler,
    Launch,
    Launcher,
    TrainingEnv,
    decide,
    derive,
    refuse_unsupported,
)

_PRECOMPILE = "RUN_NEURON_PARALLEL_COMPILE"
"""Set to 1 by the user, it puts Neuron's precompiler before torchrun (contract 4.4)."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Everything that starting the workers needs."""

    env: TrainingEnv
    launch: Launch
    program: Program | None
    python: Python
    machine: Machine
    master: tuple[str, int]
    """The first host's IP address, and the job's port."""
    wrapper: tuple[str, ...] = ()
    """Put before torchrun's command line."""


def make_room(tree: MlTree) -> None:
    """What the platform makes before it starts a container; absent when somebody starts it by hand."""
    for directory in tree.directories():
        directory.mkdir(parents=True, exist_ok=True)
    # From an earlier run on the same directory; this one has not failed yet.
    tree.failure.unlink(missing_ok=True)


def prepare(tree: MlTree, children: Children, environment: Mapping[str, str]) -> Ready:
    """Read, fetch and install what the job of ``tree`` needs, saying what was found.

    Raises:
        HotfireError: the job cannot run as it is; says why.
        OSError: this machine fails: a full disk, a directory that cannot be written.
    """
    config = read_config(tree)
    for line in config.assumptions:
        say(line)
    env = derive(
        hyperparameters=config.hyperparameters,
        resource_config=config.resource_config,
        input_data_config=config.input_data_config,
        environment=environment,
        devices=count_devices(
            children, environment, str(config.resource_config.get("current_instance_type", ""))
        ),
        base_dir=PurePosixPath(tree.root),
    )
    machine = Machine(
        kind=kind_of(env.devices, environment),
        cpus=usable_cpus(),
        interfaces=interface_names(),
        efa=Path("/dev/infiniband/uverbs0").exists(),
        kernel=_kernel(),
        compile_cache=neuron.cache_directory(tree, env.current_host, environment),
        checkpoints=neuron.checkpoints(tree),
    )
    _introduce(env, machine, environment)
    refuse_unsupported(env)
    _bring_code(env, tree, children, environment)
    program = find_program(env.program, tree.code)
    launch = decide(env, environment, built_in=program is None)
    if launch.compiler is Compiler.INDUCTOR:
        _check_toolchain(environment)
    _announce(program, launch)
    python = _install(program, tree, children, environment)
    known = hosts.addresses(env.hosts, environment, children.signals.pause)
    torchrun = launch.launcher is Launcher.TORCHRUN
    master = launch.hosts[0] if torchrun else env.master_host
    return Ready(
        env=env,
        launch=launch,
        program=program,
        python=python,
        machine=machine,
        master=(known[master], _master_port(environment, launch)),
        wrapper=_wrapper(environment, launch),
    )


def _kernel() -> tuple[int, int]:
    """Major and minor version; newer than all where it does not say."""
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(numbers[1]), int(numbers[2])) if numbers else (99, 0)


def _bring_code(
    env: TrainingEnv, tree: MlTree, children: Children, environment: Mapping[str, str]
) -> None:
    tree.code.mkdir(parents=True, exist_ok=True)
    if env.submit_directory and env.submit_directory != str(tree.code):
        # Imported where used, as below: archives and hashes would cost every other container its time.
        from hotfire.entrypoints.train import source

        source.bring(env.submit_directory, tree.code, children, environment, env.region)


def _install(
    program: Program | None, tree: MlTree, children: Children, environment: Mapping[str, str]
) -> Python:
    package = program is not None and program.kind is Kind.PACKAGE
    if not package and not (tree.code / "requirements.txt").exists():
        return Python(variables={})
    from hotfire.entrypoints.train import requirements

    return requirements.install(
        requirements.wanted(tree.code, package=package),
        children,
        environment,
        overlay="HOTFIRE_HOSTS" in environment,
    )


def _introduce(env: TrainingEnv, machine: Machine, environment: Mapping[str, str]) -> None:
    count = len(env.hosts)
    place = f"{env.current_host} (one of {count} hosts)" if count > 1 else env.current_host
    emulated = ", emulated on the CPU" if environment.get("HOTFIRE_DEVICE") else ""
    found = [f"{env.devices.cpus} CPUs"]
    found += [f"{env.devices.gpus} GPUs{emulated}"] if env.devices.gpus else []
    found += [f"{env.neuron_cores} NeuronCores{emulated}"] if env.neuron_cores else []
    job = f"job {env.job_name} on " if env.job_name else ""
    say(f"{job}{place}, {env.current_instance_type}: {', '.join(found)}")
    if module := environment.get("SAGEMAKER_TRAINING_MODULE"):
        say(f"SAGEMAKER_TRAINING_MODULE={module} is not run: hotfire starts the script itself")


def _announce(program: Program | None, launch: Launch) -> None:
    if program is None:
        say(f"the job brings no code: the built-in program {BUILT_IN_PROGRAM} runs")
    elif program.note:
        say(program.note)
    if program and program.kind is Kind.COMMAND and launch.launcher is Launcher.TORCHRUN:
        raise UnsupportedError(
            f"torchrun starts Python scripts, and {program.name} is {program.kind.value}.",
            do="Name a .py script, or leave the distribution out and start the workers in the program.",
        )
    say(launch.reason)


def _check_toolchain(environment: Mapping[str, str]) -> None:
    """Inductor writes C++ on a CPU and C launchers for Triton on a GPU, and compiles both while the job runs."""
    program = environment.get("CXX") or "g++"
    if shutil.which(program, path=environment.get("PATH")) is None:
        raise ValidationError(
            f"The compiler inductor needs a C++ compiler, and {program} is not installed here.",
            do="Install it (Debian: apt-get install g++), or use --compiler xla or none.",
        )


def _wrapper(environment: Mapping[str, str], launch: Launch) -> tuple[str, ...]:
    if environment.get(_PRECOMPILE) != "1":
        return ()
    if launch.launcher is not Launcher.TORCHRUN:
        say(f"{_PRECOMPILE}=1 is ignored: without torchrun nothing is compiled in parallel")
        return ()
    precompiler = shutil.which("neuron_parallel_compile", path=environment.get("PATH"))
    if precompiler is None:
        say(f"{_PRECOMPILE}=1 is ignored: neuron_parallel_compile is not installed here")
        return ()
    say(
        f"{_PRECOMPILE}=1: graphs are collected and compiled; what the script computes is meaningless"
    )
    return (precompiler,)


def _master_port(environment: Mapping[str, str], launch: Launch) -> int:
    for name in ("HOTFIRE_MASTER_PORT", "MASTER_PORT"):
        if text := environment.get(name):
            if not text.isdecimal() or not 0 < int(text) < 65536:
                raise ValidationError(f"{name}={text!r} is no port.", do="Give 1 to 65535.")
            return int(text)
    # One host's port concerns nobody else, so it can give way to another job's.
    if len(launch.hosts) == 1 and launch.launcher is Launcher.TORCHRUN:
        return _free_port(MASTER_PORT)
    return MASTER_PORT


def _free_port(wished: int) -> int:
    import socket

    for port in (wished, 0):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", port))
            except OSError:
                continue
            return int(listener.getsockname()[1])
    return wished
