"""Counts the devices of this container, once, the way sagemaker-training looks for them (contract 7)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from hotfire.entrypoints.train import neuron
from hotfire.entrypoints.train.children import Children
from hotfire.entrypoints.train.talk import say
from hotfire.runtime.training_env import Devices

_TOOLS = ("mpirun", "smddprun", "smddpmprun")
_PATIENCE = 30.0


class Kind(StrEnum):
    """What computes. The values are torch_xla's names for PJRT_DEVICE."""

    CPU = "CPU"
    GPU = "GPU"
    NEURON = "NEURON"


def count_devices(
    children: Children, environment: Mapping[str, str], instance_type: str
) -> Devices:
    """What ``neuron-ls`` and ``nvidia-smi`` report; a tool that fails or babbles counts as none.

    Where ``neuron-ls`` is missing the device files of the instance's chips count.
    """
    if shutil.which("neuron-ls", path=environment.get("PATH")):
        neuron_cores = _neuron_cores(_output(children, environment, ["neuron-ls", "-j"]))
    else:
        neuron_cores = 0 if "HOTFIRE_DEVICE" in environment else neuron.cores(instance_type)
    return Devices(
        cpus=os.cpu_count() or 1,
        gpus=_gpus(_output(children, environment, ["nvidia-smi", "--list-gpus"])),
        neuron_cores=neuron_cores,
        tools=frozenset(
            tool for tool in _TOOLS if shutil.which(tool, path=environment.get("PATH"))
        ),
    )


def kind_of(devices: Devices, environment: Mapping[str, str]) -> Kind:
    """What the workers compute on; the CPU where the platform emulates the devices (HOTFIRE_DEVICE)."""
    if forced := environment.get("HOTFIRE_DEVICE"):
        return Kind(forced.upper()) if forced.upper() in set(Kind) else Kind.CPU
    if any(Path("/dev").glob("neuron[0-9]*")):
        return Kind.NEURON
    return Kind.GPU if devices.gpus else Kind.CPU


def usable_cpus() -> int:
    """CPUs that this container may run on, which a cpuset can make fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _output(children: Children, environment: Mapping[str, str], argv: Sequence[str]) -> str:
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        return ""
    try:
        code, text = children.capture([program, *argv[1:]], env=environment, timeout=_PATIENCE)
    except OSError as error:
        say(f"{argv[0]} cannot be run ({error.strerror}): counting none of its devices")
        return ""
    if code != 0:
        ended = "does not answer" if code is None else f"ends with {code}"
        say(f"{argv[0]} {ended}: counting none of its devices")
        return ""
    return text


def _gpus(text: str) -> int:
    return sum(line.startswith("GPU ") for line in text.splitlines())


def _neuron_cores(text: str) -> int:
    if not text:
        return 0
    try:
        return sum(int(chip.get("nc_count", 0)) for chip in json.loads(text))
    except (ValueError, TypeError, AttributeError):
        say("neuron-ls -j does not print the JSON expected: counting no NeuronCores")
        return 0
