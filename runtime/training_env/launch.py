"""How a host starts the script: torchrun or one process, how many workers, which compiler, and why. Pure.

torchrun runs only where the job asks for it. Starting it unasked would hide what happens on SageMaker, where a job
without a distribution leaves every NeuronCore but one idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hotfire.runtime.errors import UnsupportedError, ValidationError
from hotfire.runtime.training_env.environment import TrainingEnv

BUILT_IN_PROGRAM = "hotfire.entrypoints.programs.text_classification"
"""The module that runs when a job brings no code and names no script."""

MASTER_PORT = 7777
"""The toolkit's port for torchrun (contract 4.4); hotfire's platform gives each job one of its own."""

_NEURON_FAMILIES = ("trn1", "trn1n", "trn2", "trn3", "inf2")
_USE_TORCHRUN = (
    "Use distribution={'torch_distributed': {'enabled': True}} (--distribution torch_distributed)."
)


class Launcher(StrEnum):
    TORCHRUN = "torchrun"
    PROCESS = "process"


class Compiler(StrEnum):
    XLA = "xla"
    INDUCTOR = "inductor"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One host's launch. ``hosts`` take part in it, the first is the master; ``reason`` is one line for the user."""

    launcher: Launcher
    hosts: tuple[str, ...]
    current_host: str
    workers: int
    compiler: Compiler
    reason: str
    built_in: bool = False
    compiler_debug: bool = False
    """The compiler writes down what it does, below output/data/compiler."""

    @property
    def node_rank(self) -> int:
        return self.hosts.index(self.current_host)

    @property
    def world_size(self) -> int:
        return self.workers * len(self.hosts)


def decide(
    env: TrainingEnv, environment: Mapping[str, str] | None = None, *, built_in: bool = False
) -> Launch:
    """The launch that the job asks for on ``env.current_host``.

    Args:
        env: the host's training environment.
        environment: where HOTFIRE_PROCESSES_PER_HOST, HOTFIRE_COMPILER and HOTFIRE_COMPILER_DEBUG are looked up;
            ``env.environment`` if None.
        built_in: the job brings no script, so that the built-in program runs.

    Raises:
        UnsupportedError: the job asks for a distribution that hotfire does not run.
        ValidationError: HOTFIRE_PROCESSES_PER_HOST or HOTFIRE_COMPILER holds nonsense.
    """
    environment = env.environment if environment is None else environment
    refuse_unsupported(env)
    asked = _asked_workers(environment)
    kind, found = _accelerators(env)
    here = env.current_host in env.distribution_hosts
    why = _why_torchrun(env, here=here, asked=asked, built_in=built_in)
    if why:
        # The group of a distribution may be part of the cluster; anything else takes in every host.
        hosts = env.distribution_hosts if why in _ASKED_BY_KEY.values() else env.hosts
        workers = asked or max(found, 1)
    else:
        hosts, workers = [env.current_host], 1
    return Launch(
        launcher=Launcher.TORCHRUN if why else Launcher.PROCESS,
        hosts=tuple(hosts),
        current_host=env.current_host,
        workers=workers,
        compiler=_compiler(env, environment, built_in=built_in),
        reason=_torchrun_line(why, workers, len(hosts), kind, found)
        if why
        else _process_line(kind, found, len(env.hosts)),
        built_in=built_in,
        compiler_debug=is_on(environment.get("HOTFIRE_COMPILER_DEBUG"))
        or is_on(env.framework_parameters.get("sagemaker_training_compiler_debug_mode")),
    )


_ASKED_BY_KEY = {
    "sagemaker_torch_distributed_enabled": "torch_distributed asked for",
    "sagemaker_pytorch_xla_multi_worker_enabled": "pytorchxla asked for",
}


def _why_torchrun(env: TrainingEnv, *, here: bool, asked: int, built_in: bool) -> str:
    for key, why in _ASKED_BY_KEY.items():
        if is_on(env.framework_parameters.get(key)) and here:
            return why
    if asked:
        return "--processes-per-host"
    return "the built-in program" if built_in else ""


def refuse_unsupported(env: TrainingEnv) -> None:
    """Refuse, by name, distributions that hotfire does not run; never another one in their place.

    Raises:
        UnsupportedError: says what is not run and what to use.
    """
    on = {name for name, value in env.framework_parameters.items() if is_on(value)}
    if env.hyperparameters.get("mp_parameters"):
        raise UnsupportedError(
            "smdistributed model parallel (mp_parameters) is a library that only AWS's images hold.",
            do=_USE_TORCHRUN,
        )
    if "sagemaker_distributed_dataparallel_enabled" in on:
        raise UnsupportedError(
            "smdistributed data parallel is a library that only AWS's GPU images hold.",
            do=_USE_TORCHRUN,
        )
    if "sagemaker_mpi_enabled" in on:
        missing = "" if "mpirun" in env.devices.tools else ", and mpirun is not installed here"
        raise UnsupportedError(
            f"The mpi distribution is not supported yet{missing}.", do=_USE_TORCHRUN
        )
    if "sagemaker_pytorch_ddp_enabled" in on:
        raise UnsupportedError(
            "The pytorchddp distribution starts workers through MPI, which is not supported yet.",
            do=_USE_TORCHRUN,
        )
    for key, name in (
        ("sagemaker_parameter_server_enabled", "parameter_server"),
        ("sagemaker_multi_worker_mirrored_strategy_enabled", "multi_worker_mirrored_strategy"),
    ):
        if key in on:
            raise UnsupportedError(
                f"The distribution {name} belongs to TensorFlow, which hotfire does not run.",
                do="Leave the distribution out, or train with PyTorch and torch_distributed.",
            )


def is_on(value: Any) -> bool:
    """Whether a setting is on: the SDK sends true for distributions and the text "true" for the compiler."""
    return value.strip().lower() in {"true", "1"} if isinstance(value, str) else bool(value)


def _asked_workers(environment: Mapping[str, str]) -> int:
    text = environment.get("HOTFIRE_PROCESSES_PER_HOST", "").strip()
    if not text:
        return 0
    if not text.isdecimal() or int(text) == 0:
        raise ValidationError(
            f"HOTFIRE_PROCESSES_PER_HOST={text!r} is no number of processes.",
            do="Give a whole number from 1 (--processes-per-host N).",
        )
    return int(text)


def _accelerators(env: TrainingEnv) -> tuple[str, int]:
    if env.neuron_cores:
        return "NeuronCores", env.neuron_cores
    return "GPUs", env.devices.gpus


def _compiler(env: TrainingEnv, environment: Mapping[str, str], *, built_in: bool) -> Compiler:
    """XLA on Neuron, for the training compiler's own settings and for the built-in program; else none."""
    if asked := environment.get("HOTFIRE_COMPILER", "").strip().lower():
        if asked not in set(Compiler):
            raise ValidationError(
                f"HOTFIRE_COMPILER={asked!r} is no compiler.",
                do=f"It is one of {', '.join(Compiler)}.",
            )
        return Compiler(asked)
    settings = env.framework_parameters
    family = env.current_instance_type.removeprefix("ml.").partition(".")[0]
    wanted = (
        built_in
        or family in _NEURON_FAMILIES
        or env.neuron_cores > 0
        or is_on(settings.get("sagemaker_training_compiler_enabled"))
        or is_on(settings.get("sagemaker_pytorch_xla_multi_worker_enabled"))
    )
    return Compiler.XLA if wanted else Compiler.NONE


def _torchrun_line(why: str, workers: int, hosts: int, kind: str, found: int) -> str:
    of = f", {min(workers, found)} of {found} {kind} used" if found else ""
    return (
        f"torchrun with {_count(workers, 'worker')} on {'each of ' if hosts > 1 else ''}{_count(hosts, 'host')}"
        f" ({why}{of})"
    )


def _process_line(kind: str, found: int, hosts: int) -> str:
    alone = "no distribution asked for"
    if found > 1:
        return f"1 of {found} {kind} used: {alone}"
    if hosts > 1:
        return f"one process on each of {hosts} hosts, which do not know of each other: {alone}"
    return f"one process: {alone}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
