"""What train tells Neuron's compiler, runtime and EFA, on a machine that has none of them: stand-in tools, real processes."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from hotfire.entrypoints.train import neuron
from hotfire.entrypoints.train.devices import Kind
from hotfire.entrypoints.train.environ import Machine, worker_environment
from hotfire.runtime.training_env import Devices, decide, derive

SHOW = """
import json, os, resource
found = {name: os.environ[name] for name in os.environ if name.startswith(("NEURON_", "MALLOC_", "FI_", "CCOM_"))}
print(json.dumps(found | {"files": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "cores": os.environ["SM_NUM_NEURONS"]}))
"""


@pytest.fixture
def chip(container: Any) -> Any:
    """A container that believes to have a Trainium chip."""
    tool(container, "neuron-ls", """echo '[{"neuron_device": 0, "nc_count": 2}]'""")
    container.env["HOTFIRE_DEVICE"] = "neuron"
    container.hosts("algo-1", current_instance_type="ml.trn1.2xlarge")
    container.write("train.py", SHOW)
    return container


def tool(container: Any, name: str, script: str) -> None:
    path = container.root / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_what_is_set_and_said(chip: Any) -> None:
    (chip.config / "checkpointconfig.json").write_text('{"LocalPath": "/opt/ml/saved/"}')
    chip.prefix = ["sh", "-c", 'ulimit -S -n 256; exec "$0" "$@"']
    result = chip.run()
    found = json.loads(result.out)
    assert found.pop("files") > 256
    assert found == {
        "cores": "2",
        "MALLOC_ARENA_MAX": "64",
        "NEURON_CC_FLAGS": "--retry_failed_compilation",
        "NEURON_COMPILE_CACHE_URL": "/opt/ml/saved/.neuron-compile-cache/algo-1",
    }
    (line,) = (line for line in result.talk if line.startswith("Neuron: "))
    assert "set MALLOC_ARENA_MAX=64, NEURON_CC_FLAGS=--retry" in line
    assert "kept" not in line


@pytest.mark.parametrize(
    "mine",
    [
        {"NEURON_COMPILE_CACHE_URL": "s3://mine/cache", "MALLOC_ARENA_MAX": "2"},
        {"NEURON_CC_FLAGS": "--cache_dir=/mine -O1", "NEURON_RT_LOG_LEVEL": "INFO"},
    ],
)
def test_what_the_user_sets_stays_and_is_named(chip: Any, mine: dict[str, str]) -> None:
    (chip.ml / "checkpoints").mkdir()
    chip.env |= mine
    result = chip.run()
    found = json.loads(result.out)
    assert {name: found[name] for name in mine} == mine
    # The directory in the flags would win over ours, which must not pretend to be used.
    assert found.get("NEURON_COMPILE_CACHE_URL", "none") in ("s3://mine/cache", "none")
    (line,) = (line for line in result.talk if line.startswith("Neuron: "))
    assert f"kept your {', '.join(sorted(mine))}" in line


def test_without_the_devices_nothing_is_said_or_set(chip: Any) -> None:
    chip.env["HOTFIRE_DEVICE"] = "cpu"
    result = chip.run()
    assert set(json.loads(result.out)) == {"files", "cores"}
    assert not [line for line in result.talk if line.startswith("Neuron")]


@pytest.mark.parametrize(
    ("environment", "folder", "wanted"),
    [
        ({}, "", ""),
        ({}, "checkpoints", "{ml}/checkpoints/.neuron-compile-cache/algo-3"),
        ({"HOTFIRE_CACHE": "/c"}, "", "/c/compile/neuron/algo-3"),
        ({"HOTFIRE_CACHE": "/c", "HOTFIRE_COMPILE_CACHE": "/d"}, "", "/d/neuron/algo-3"),
    ],
)
def test_where_compiled_programs_survive(
    tmp_path: Path, environment: dict[str, str], folder: str, wanted: str
) -> None:
    from hotfire.runtime.layout import MlTree

    (tmp_path / folder).mkdir(exist_ok=True)
    found = neuron.cache_directory(MlTree(tmp_path), "algo-3", environment)
    assert found == wanted.format(ml=tmp_path)


def test_cores_by_device_files(tmp_path: Path) -> None:
    for name in ("neuron0", "neuron1", "neuron_core", "null"):
        (tmp_path / name).touch()
    assert neuron.cores("ml.trn1.2xlarge", tmp_path) == 4
    assert neuron.cores("trn2.48xlarge", tmp_path) == 8
    assert neuron.cores("", tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("kind", "kernel", "wanted"),
    [
        (Kind.NEURON, (5, 10), {"FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA", "FI_EFA_FORK_SAFE"}),
        (Kind.NEURON, (6, 1), {"FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA"}),
        (Kind.GPU, (6, 1), {"FI_PROVIDER"}),
        (Kind.CPU, (6, 1), set[str]()),
    ],
)
def test_efa_is_used_where_the_container_has_it(
    kind: Kind, kernel: tuple[int, int], wanted: set[str]
) -> None:
    env = derive(
        hyperparameters={"sagemaker_torch_distributed_enabled": "true"},
        resource_config={
            "hosts": ["algo-1"],
            "current_host": "algo-1",
            "network_interface_name": "eth0",
        },
        input_data_config={},
        environment={},
        devices=Devices(cpus=2, neuron_cores=2),
        base_dir=PurePosixPath("/opt/ml"),
    )
    machine = Machine(kind=kind, cpus=2, interfaces=("eth0",), efa=True, kernel=kernel)
    found = worker_environment({}, env, decide(env), machine, master=("10.0.0.1", 7777))
    assert {name for name in found if name.startswith("FI_")} == wanted
    assert ("CCOM_SOCKET_IFNAME" in found) == (kind is Kind.NEURON)


def test_graphs_are_compiled_in_parallel_when_asked_for(chip: Any) -> None:
    chip.configure(sagemaker_program="train.py", sagemaker_torch_distributed_enabled=True)
    chip.env["RUN_NEURON_PARALLEL_COMPILE"] = "1"
    assert any("is not installed here" in line for line in chip.run().talk)
    tool(chip, "neuron_parallel_compile", 'echo "compiling with $# words"; exec "$@"')
    result = chip.run()
    assert result.code == 0
    assert result.out.startswith("compiling with ")
    assert result.out.count("NEURON_CC_FLAGS") == 2
    assert any("what the script computes is meaningless" in line for line in result.talk)
