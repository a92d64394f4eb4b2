"""What an ml.* instance type has, from ``instances.json``, and the stand-ins for the tools of its devices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from hotfire.runtime import service_model, traits
from hotfire.runtime.errors import ValidationError

LOCAL = "local"
"""hotfire's own instance type: this machine with the devices it has."""


class Accelerator(StrEnum):
    NONE = "none"
    NVIDIA = "nvidia"
    NEURON = "neuron"
    UNKNOWN = "unknown"
    """``local``, or a type of which no numbers are known: nothing may be derived from it."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One type; a number that nobody wrote down is None, never a guess."""

    name: str
    accelerator: Accelerator
    vcpu: int | None = None
    memory_gib: int | None = None
    gpus: int | None = None
    gpu_name: str = ""
    gpu_total_mib: int | None = None
    neuron_chips: int | None = None
    """Device nodes: /dev/neuron0 and on."""
    neuron_cores: int | None = None
    """Logical NeuronCores as the runtime shows them by default."""
    neuron_total_gib: int | None = None
    efa: bool = False
    local_storage: bool = False
    """NVMe disks that are used whole instead of an EBS volume (contract 1.4)."""

    @property
    def devices(self) -> int | None:
        """NeuronCores, else GPUs: how many workers a host runs. 0 without accelerators, None if not known."""
        if self.accelerator is Accelerator.UNKNOWN:
            return None
        return self.neuron_cores or self.gpus or 0

    @property
    def family(self) -> str:
        """``p3`` of ``ml.p3.2xlarge``."""
        return self.name.removeprefix("ml.").partition(".")[0]


def lookup(name: str, cache_dir: Path | None = None) -> Instance:
    """The type of that name. One that the service knows and the table does not has no numbers.

    Raises:
        ValidationError: the service has no such training instance type.
    """
    if name == LOCAL:
        return Instance(name=name, accelerator=Accelerator.UNKNOWN)
    if (entry := table().get(name)) is not None:
        return entry
    known = service_model.enum_values("TrainingInstanceType", cache_dir)
    if name not in known:
        close = traits.near(name, [*known, LOCAL])
        raise ValidationError(
            f"{name} is not an instance type for training.",
            do=f"Did you mean {' or '.join(close)}?" if close else f"Give an ml.* type or {LOCAL}.",
        )
    family = name.removeprefix("ml.").partition(".")[0]
    if family in _file()["families_without_accelerators"]:
        return Instance(
            name=name, accelerator=Accelerator.NONE, gpus=0, neuron_chips=0, neuron_cores=0
        )
    return Instance(name=name, accelerator=Accelerator.UNKNOWN)


@cache
def table() -> Mapping[str, Instance]:
    """Every type of which numbers are known."""
    return {name: _instance(name, entry) for name, entry in _file()["types"].items()}


def sibling(instance: Instance, devices: int) -> Instance | None:
    """The smallest type of the same family that holds ``devices`` accelerators in one host."""
    found = [
        other
        for other in table().values()
        if other.family == instance.family and other.devices == devices
    ]
    return min(found, key=lambda other: (other.vcpu or 0, other.name), default=None)


@cache
def _file() -> Mapping[str, Any]:
    path = Path(__file__).with_name("instances.json")
    data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def _instance(name: str, entry: Mapping[str, Any]) -> Instance:
    neuron = "neuron_cores" in entry
    absent: dict[str, Any] = {"gpus": 0} if neuron else {"neuron_chips": 0, "neuron_cores": 0}
    kind = Accelerator.NEURON if neuron else Accelerator.NVIDIA
    return Instance(name=name, accelerator=kind, **absent, **entry)


# --- stand-ins ---------------------------------------------------------------------------------


def stand_ins(instance: Instance) -> dict[str, str]:
    """POSIX sh programs, by file name, that answer as the devices of ``instance`` would.

    ``neuron-ls`` and ``nvidia-smi`` are what the training toolkit asks for SM_NUM_NEURONS and SM_NUM_GPUS
    (contract 7). A kind of device that the type lacks gets a stand-in that finds none, so that those of this machine
    do not show through. Nothing for a type of which nothing is known.
    """
    if instance.accelerator is Accelerator.UNKNOWN:
        return {}
    return {"neuron-ls": _neuron_ls(instance), "nvidia-smi": _nvidia_smi(instance)}


def _script(instance: Instance, body: str) -> str:
    return f"#!/bin/sh\n# Emulated by hotfire: answers for {instance.name}.\n{body}"


def _here(text: str) -> str:
    return f"cat <<'END'\n{text}\nEND\n"


def _neuron_ls(instance: Instance) -> str:
    chips, cores = instance.neuron_chips or 0, instance.neuron_cores or 0
    if not chips:
        # Quiet for those who only count: on such a host the tool is not installed at all.
        return _script(
            instance,
            'for arg in "$@"; do\n  case "$arg" in -j|--json-output) echo "[]"; exit 0 ;; esac\ndone\n'
            f"echo 'neuron-ls: no Neuron device found on {instance.name} (emulated by hotfire)' >&2\n"
            "exit 1\n",
        )
    per_chip = cores // chips
    memory = (instance.neuron_total_gib or 0) * 2**30 // chips
    devices = [
        {
            "neuron_device": chip,
            "bdf": f"00:{chip:02x}.0",
            "connected_to": _ring(chip, chips),
            "nc_count": per_chip,
            "memory_size": memory,
            "neuron_processes": [],
        }
        for chip in range(chips)
    ]
    rows = [f"| {chip:<6} | {per_chip:<11} | {memory // 2**30:>3} GiB |" for chip in range(chips)]
    rule = "+--------+-------------+---------+"
    lines = [
        f"instance-type: {instance.name.removeprefix('ml.')} (emulated by hotfire: no such device is here)",
        rule,
        "| DEVICE | NEURONCORES | MEMORY  |",
        rule,
        *rows,
        rule,
    ]
    return _script(
        instance,
        'for arg in "$@"; do\n  case "$arg" in\n    -j|--json-output)\n'
        + _here(json.dumps(devices))
        + "exit 0 ;;\n  esac\ndone\n"
        + _here("\n".join(lines)),
    )


def _ring(chip: int, chips: int) -> list[int] | None:
    if chips == 1:
        return None
    return sorted({(chip - 1) % chips, (chip + 1) % chips})


def _nvidia_smi(instance: Instance) -> str:
    count = instance.gpus or 0
    if not count:
        return _script(
            instance,
            'for arg in "$@"; do\n  case "$arg" in -L|--list-gpus) exit 0 ;; esac\ndone\n'
            f"echo 'No devices were found: {instance.name} has no GPU (emulated by hotfire)' >&2\n"
            "exit 6\n",
        )
    each = (instance.gpu_total_mib or 0) // count
    listed = "\n".join(
        f"GPU {index}: {instance.gpu_name} (UUID: GPU-emulated-by-hotfire-{index})"
        for index in range(count)
    )
    table_ = "\n".join(
        f"| {index:>3}  {instance.gpu_name:<28} 0 MiB / {each} MiB |" for index in range(count)
    )
    title = f"NVIDIA-SMI emulated by hotfire: {instance.name}, no such device is here"
    return _script(
        instance,
        'case "$1" in\n  -L|--list-gpus)\n'
        + _here(listed)
        + "exit 0 ;;\n  '') ;;\n"
        + "  *) echo \"nvidia-smi emulated by hotfire: cannot answer '$*'; only -L\" >&2; exit 2 ;;\n"
        + "esac\n"
        + _here(f"{title}\n{table_}"),
    )
