"""The environment and the command of the workers. Pure."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotfire import containers
from hotfire.entrypoints.train import neuron
from hotfire.entrypoints.train.devices import Kind
from hotfire.runtime.training_env import Compiler, Launch, Launcher, TrainingEnv

MAX_VARIABLE = 128 * 1024 - 1
"""Bytes of one ``NAME=value``, which Linux refuses to pass beyond (MAX_ARG_STRLEN)."""

# GPU types whose network cards do RDMA, as those of every Trainium type with EFA do; others have EFA without it.
_RDMA_FAMILIES = (
    "p4d",
    "p4de",
    "p5",
    "p5e",
    "p5en",
    "p6-b200",
    "p6e-gb200",
)
_FORKS_SAFELY = (5, 15)
"""Kernels from here on copy pinned pages at a fork; EFA then works in a process that forks without being told."""


@dataclass(frozen=True, kw_only=True)
class Python:
    """The interpreter that runs the script, and what its environment needs."""

    executable: str = sys.executable
    variables: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the environment depends on beside the job."""

    kind: Kind
    cpus: int
    interfaces: Collection[str] = ()
    efa: bool = False
    kernel: tuple[int, int] = (0, 0)
    compile_cache: str = ""
    """Where Neuron's compiler keeps what it compiled; "" for its own default."""
    checkpoints: str = ""
    """The directory that outlives this container; "" for none."""


def worker_environment(
    given: Mapping[str, str],
    env: TrainingEnv,
    launch: Launch,
    machine: Machine,
    *,
    master: tuple[str, int],
) -> dict[str, str]:
    """What every worker gets: the container's environment, SM_*, and what the user has not set otherwise.

    ``master`` is the first host's IP address and the job's port.
    """
    settings = dict(given)
    settings |= env.variables()
    settings |= {
        "CURRENT_HOST": env.current_host,
        "SAGEMAKER_JOB_NAME": env.job_name,
        "SAGEMAKER_REGION": env.region,
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
        # Scripts in a sub-directory import from the top of the source directory, as under the toolkit.
        "PYTHONPATH": os.pathsep.join(
            filter(
                None, [env.code_dir, _plugins(launch, machine.kind), given.get("PYTHONPATH", "")]
            )
        ),
    }
    defaults = {"PYTHONUNBUFFERED": "1", **_compiler(launch, machine, given)}
    if machine.kind is Kind.NEURON:
        defaults |= neuron.settings(given, launch, machine.compile_cache)
    if launch.launcher is Launcher.TORCHRUN:
        defaults |= _distributed(env, launch, machine)
    for name, value in defaults.items():
        settings.setdefault(name, value)
    return settings


def _plugins(launch: Launch, kind: Kind) -> str:
    """Where the metadata lies that registers the CUDA plugin with torch_xla.

    Only workers on GPUs find it: torch_xla imports every plugin that it finds, wherever hotfire is installed.
    """
    if launch.compiler is not Compiler.XLA or kind is not Kind.GPU:
        return ""
    return str(Path(containers.__file__).parent / "assets")


def _compiler(launch: Launch, machine: Machine, given: Mapping[str, str]) -> dict[str, str]:
    chosen = {"HOTFIRE_COMPILER": launch.compiler.value}
    if launch.compiler_debug:
        chosen["HOTFIRE_COMPILER_DEBUG"] = "1"
    if cache := _compile_cache(machine, given):
        chosen["HOTFIRE_COMPILE_CACHE"] = cache
    if launch.compiler is Compiler.INDUCTOR:
        # What accelerate, and Hugging Face's Trainer through it, compile the model with.
        chosen["ACCELERATE_DYNAMO_BACKEND"] = "inductor"
        if cache:
            chosen["TORCHINDUCTOR_CACHE_DIR"] = f"{cache}/inductor"
    if launch.compiler is Compiler.XLA:
        return chosen | {"PJRT_DEVICE": machine.kind.value}
    # Hugging Face's Trainer takes XLA as soon as torch_xla can be imported.
    return chosen | {"USE_TORCH_XLA": "0"}


def _compile_cache(machine: Machine, given: Mapping[str, str]) -> str:
    """Where Inductor and torch_xla keep what they compiled: for later jobs, else for this one's next attempt."""
    if chosen := given.get("HOTFIRE_COMPILE_CACHE"):
        return chosen
    if cache := given.get("HOTFIRE_CACHE"):
        return f"{cache}/compile"
    # Hidden: scripts look whether there are checkpoints by listing their directory.
    return f"{machine.checkpoints}/.compile-cache" if machine.checkpoints else ""


def _distributed(env: TrainingEnv, launch: Launch, machine: Machine) -> dict[str, str]:
    settings: dict[str, str] = {}
    if launch.workers > 1:
        # torchrun's own default is 1, with a banner.
        settings["OMP_NUM_THREADS"] = str(max(1, machine.cpus // launch.workers))
    interface = env.network_interface_name
    if interface in machine.interfaces:
        # gloo otherwise looks up the machine's own name, which need not resolve in a container.
        settings["GLOO_SOCKET_IFNAME"] = interface
    if machine.kind is Kind.GPU:
        settings |= {"NCCL_SOCKET_IFNAME": interface, "NCCL_PROTO": "simple"}
    if machine.kind is Kind.NEURON and interface in machine.interfaces:
        settings["CCOM_SOCKET_IFNAME"] = interface
    if machine.kind is not Kind.CPU and machine.efa:
        settings["FI_PROVIDER"] = "efa"
        family = env.current_instance_type.removeprefix("ml.").partition(".")[0]
        if machine.kind is Kind.NEURON or family in _RDMA_FAMILIES:
            settings |= {"FI_EFA_USE_DEVICE_RDMA": "1", "RDMAV_FORK_SAFE": "1"}
            if machine.kernel < _FORKS_SAFELY:
                settings["FI_EFA_FORK_SAFE"] = "1"
    return settings


def passable(settings: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """``settings`` without what no process can be given, and a line for each that was left out."""
    kept: dict[str, str] = {}
    left_out: list[str] = []
    for name, value in settings.items():
        reason = _unpassable(name, value)
        if reason:
            left_out.append(f"warning: the variable {name} is left out: {reason}")
        else:
            kept[name] = value
    return kept, left_out


def _unpassable(name: str, value: str) -> str:
    if not name or "=" in name or "\0" in name:
        return "its name cannot be that of a variable"
    try:
        size = len(os.fsencode(name)) + len(os.fsencode(value)) + 1
    except UnicodeEncodeError:
        return "its value is not valid Unicode"
    if "\0" in value:
        return "its value holds a null character"
    return f"{size} bytes are more than Linux passes" if size > MAX_VARIABLE else ""


def worker_command(python: str, target: Sequence[str]) -> list[str]:
    """``target`` is a script and its arguments, or ``-m``, a module and its arguments."""
    return [python, "-m", "hotfire.runtime.xla.exec", *target]


def torchrun_command(
    python: str, launch: Launch, master: tuple[str, int], target: Sequence[str], log_dir: str
) -> list[str]:
    """The arguments of contract 4.4, an address and port also on one host: two jobs may share it."""
    options = {
        "--nnodes": len(launch.hosts),
        "--nproc_per_node": launch.workers,
        "--node_rank": launch.node_rank,
        "--master_addr": master[0],
        "--master_port": master[1],
        "--log_dir": log_dir,
    }
    words = [str(word) for option in options.items() for word in option]
    program = ["-m", "hotfire.runtime.xla.exec", *target]
    return [python, "-m", "hotfire.entrypoints.train.elastic", *words, *program]
