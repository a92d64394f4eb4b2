"""Instance types: the table, types beside it, and stand-ins that answer like the tools they stand for."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hotfire.runtime import instances, service_model
from hotfire.runtime.errors import ValidationError
from hotfire.runtime.instances import Accelerator

CONTRACT = {
    # type: vCPU, GiB, GPUs, MiB of all GPUs, chips, cores (contract 7.1, 7.2)
    "ml.trn1.2xlarge": (8, 32, 0, None, 1, 2),
    "ml.trn1.32xlarge": (128, 512, 0, None, 16, 32),
    "ml.trn1n.32xlarge": (128, 512, 0, None, 16, 32),
    "ml.trn2.48xlarge": (192, 2048, 0, None, 16, 64),
    "ml.p3.2xlarge": (8, 61, 1, 16384, 0, 0),
    "ml.p3.16xlarge": (64, 488, 8, 131072, 0, 0),
    "ml.p4d.24xlarge": (96, 1152, 8, 327680, 0, 0),
    "ml.p5.48xlarge": (192, 2048, 8, 655360, 0, 0),
    "ml.g4dn.8xlarge": (32, 128, 1, 16384, 0, 0),
    "ml.g4dn.12xlarge": (48, 192, 4, 65536, 0, 0),
    "ml.g5.16xlarge": (64, 256, 1, 24576, 0, 0),
    "ml.g5.48xlarge": (192, 768, 8, 183104, 0, 0),
    "ml.p2.8xlarge": (None, None, 8, 98304, 0, 0),
}


@pytest.mark.parametrize("name", CONTRACT)
def test_numbers_of_the_contract(name: str) -> None:
    kind = instances.lookup(name)
    assert (
        kind.vcpu,
        kind.memory_gib,
        kind.gpus,
        kind.gpu_total_mib,
        kind.neuron_chips,
        kind.neuron_cores,
    ) == CONTRACT[name]


def test_the_table_holds_only_training_types_and_says_where_it_is_from() -> None:
    known = service_model.enum_values("TrainingInstanceType")
    assert set(instances.table()) <= set(known)
    file = json.loads(Path(instances.__file__).with_name("instances.json").read_text())
    assert file["date"] and file["sources"]
    families = {name.split(".")[1] for name in known}
    assert set(file["families_without_accelerators"]) <= families
    assert {name.split(".")[1] for name in file["types"]}.isdisjoint(
        file["families_without_accelerators"]
    )


def test_every_training_type_can_be_looked_up() -> None:
    for name in service_model.enum_values("TrainingInstanceType"):
        assert instances.lookup(name).name == name


def test_types_without_numbers_derive_nothing() -> None:
    for name in ("ml.g6.xlarge", "ml.p6-b200.48xlarge", "local"):
        kind = instances.lookup(name)
        assert kind.accelerator is Accelerator.UNKNOWN
        assert kind.devices is None
        assert instances.stand_ins(kind) == {}
    cpu = instances.lookup("ml.m5.xlarge")
    assert (cpu.accelerator, cpu.devices, cpu.vcpu) == (Accelerator.NONE, 0, None)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("ml.trn1.2xlrge", "ml.trn1.2xlarge"),
        ("ml.inf2.xlarge", "ml."),
        ("ML.P3.2XLARGE", "ml.p3.2xlarge"),
        ("trn1.2xlarge", "ml.trn1.2xlarge"),
        ("loacl", "local"),
        ("???", "ml.*"),
    ],
)
def test_unknown_types_are_refused_with_near_matches(name: str, near: str) -> None:
    with pytest.raises(ValidationError) as caught:
        instances.lookup(name)
    assert near in caught.value.do


def test_devices_and_siblings() -> None:
    small = instances.lookup("ml.p3.2xlarge")
    assert small.devices == 1 and small.family == "p3"
    larger = instances.sibling(small, 8)
    assert larger is not None and larger.name == "ml.p3.16xlarge"
    assert instances.sibling(small, 3) is None
    smallest = instances.sibling(instances.lookup("ml.g5.48xlarge"), 1)
    assert smallest is not None and smallest.name == "ml.g5.xlarge"


Tool = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    def run(instance: str, *argv: str) -> subprocess.CompletedProcess[str]:
        for name, text in instances.stand_ins(instances.lookup(instance)).items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        return subprocess.run(
            [str(tmp_path / argv[0]), *argv[1:]],
            env={"PATH": os.defpath},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("instance", "chips", "cores"),
    [("ml.trn1.2xlarge", 1, 2), ("ml.trn1.32xlarge", 16, 32), ("ml.trn2.48xlarge", 16, 64)],
)
def test_neuron_ls(tool: Tool, instance: str, chips: int, cores: int) -> None:
    done = tool(instance, "neuron-ls", "-j")
    devices = json.loads(done.stdout)
    assert (done.returncode, done.stderr, len(devices)) == (0, "", chips)
    # As sagemaker-training counts.
    assert sum(device.get("nc_count", 0) for device in devices) == cores
    assert [device["neuron_device"] for device in devices] == list(range(chips))
    assert json.loads(tool(instance, "neuron-ls", "--json-output").stdout) == devices
    table = tool(instance, "neuron-ls").stdout
    assert "emulated by hotfire" in table
    assert len([line for line in table.splitlines() if "GiB" in line]) == chips


@pytest.mark.parametrize(("instance", "gpus"), [("ml.p3.2xlarge", 1), ("ml.p2.16xlarge", 16)])
def test_nvidia_smi(tool: Tool, instance: str, gpus: int) -> None:
    for option in ("-L", "--list-gpus"):
        done = tool(instance, "nvidia-smi", option)
        listed = [line for line in done.stdout.split("\n") if line.startswith("GPU ")]
        assert (done.returncode, len(listed)) == (0, gpus)
    assert "emulated-by-hotfire" in listed[0]
    banner = tool(instance, "nvidia-smi")
    assert banner.returncode == 0 and "emulated by hotfire" in banner.stdout
    other = tool(instance, "nvidia-smi", "--query-gpu=name", "--format=csv")
    assert other.returncode != 0 and other.stdout == "" and "hotfire" in other.stderr


@pytest.mark.parametrize(
    ("instance", "absent"),
    [
        ("ml.trn1.2xlarge", "nvidia-smi"),
        ("ml.p3.2xlarge", "neuron-ls"),
        ("ml.m5.xlarge", "nvidia-smi"),
        ("ml.m5.xlarge", "neuron-ls"),
    ],
)
def test_devices_that_the_type_lacks_are_not_there(tool: Tool, instance: str, absent: str) -> None:
    """So that the devices of this machine do not show through."""
    counted = tool(instance, absent, "-L" if absent == "nvidia-smi" else "-j")
    # Who only counts gets none, and no noise in the job's log.
    assert (counted.returncode, counted.stdout.strip(), counted.stderr) in (
        (0, "", ""),
        (0, "[]", ""),
    )
    shown = tool(instance, absent)
    assert shown.returncode != 0
    assert shown.stdout == ""
    assert "emulated by hotfire" in shown.stderr
