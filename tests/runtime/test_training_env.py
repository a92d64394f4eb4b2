"""The launch decision, its refusals, and what differs on purpose from sagemaker-training."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

import pytest

from hotfire.runtime.errors import UnsupportedError, ValidationError
from hotfire.runtime.training_env import (
    Compiler,
    Devices,
    Launcher,
    TrainingEnv,
    command_line_arguments,
    decide,
    derive,
)


def make(
    hyperparameters: dict[str, Any] | None = None,
    *,
    hosts: int = 1,
    instance_type: str = "ml.m5.xlarge",
    environment: dict[str, str] | None = None,
    groups: list[dict[str, Any]] | None = None,
    **devices: Any,
) -> TrainingEnv:
    names = [f"algo-{number}" for number in range(1, hosts + 1)]
    resources: dict[str, Any] = {
        "hosts": names,
        "current_host": names[0],
        "current_instance_type": instance_type,
        "current_group_name": groups[0]["instance_group_name"] if groups else "homogeneousCluster",
        "instance_groups": groups
        or [
            {
                "instance_group_name": "homogeneousCluster",
                "instance_type": instance_type,
                "hosts": names,
            }
        ],
    }
    encoded = {key: json.dumps(value) for key, value in (hyperparameters or {}).items()}
    return derive(
        hyperparameters=encoded,
        resource_config=resources,
        environment=environment,
        devices=Devices(**{"cpus": 2, **devices}),
    )


TORCHRUN = {"sagemaker_torch_distributed_enabled": True}


def test_a_job_without_a_distribution_runs_one_process_and_says_what_lies_idle() -> None:
    launch = decide(make(instance_type="ml.trn1.2xlarge", neuron_cores=2))
    assert launch.launcher is Launcher.PROCESS
    assert (launch.workers, launch.world_size) == (1, 1)
    assert launch.reason == "1 of 2 NeuronCores used: no distribution asked for"


@pytest.mark.parametrize("key", [*TORCHRUN, "sagemaker_pytorch_xla_multi_worker_enabled"])
def test_torchrun_takes_every_core_of_every_host_when_the_job_asks(key: str) -> None:
    launch = decide(make({key: True}, hosts=2, instance_type="ml.trn1.2xlarge", neuron_cores=2))
    assert launch.launcher is Launcher.TORCHRUN
    assert (launch.workers, launch.hosts, launch.node_rank) == (2, ("algo-1", "algo-2"), 0)
    assert launch.world_size == 4
    assert launch.compiler is Compiler.XLA


@pytest.mark.parametrize(
    ("devices", "workers"),
    [({"gpus": 4}, 4), ({}, 1), ({"gpus": 4, "neuron_cores": 2}, 2)],
)
def test_workers_are_neuron_cores_else_gpus_else_one(devices: dict[str, Any], workers: int) -> None:
    assert decide(make(TORCHRUN, **devices)).workers == workers


def test_processes_per_host_starts_torchrun_and_overrules_the_devices() -> None:
    env = make(environment={"HOTFIRE_PROCESSES_PER_HOST": "3"}, neuron_cores=2)
    launch = decide(env)
    assert (launch.launcher, launch.workers) == (Launcher.TORCHRUN, 3)
    assert "--processes-per-host" in launch.reason


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
def test_a_number_of_processes_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="HOTFIRE_PROCESSES_PER_HOST"):
        decide(make(environment={"HOTFIRE_PROCESSES_PER_HOST": text}))


def test_the_built_in_program_runs_on_xla_with_every_core() -> None:
    launch = decide(make(instance_type="ml.trn1.2xlarge", neuron_cores=2), built_in=True)
    assert (launch.launcher, launch.workers, launch.built_in) == (Launcher.TORCHRUN, 2, True)
    assert launch.compiler is Compiler.XLA


@pytest.mark.parametrize(
    ("hyperparameters", "instance_type", "environment", "compiler"),
    [
        ({}, "ml.trn1.32xlarge", {}, Compiler.XLA),
        ({}, "ml.m5.xlarge", {}, Compiler.NONE),
        ({}, "ml.p3.2xlarge", {}, Compiler.NONE),
        ({"sagemaker_training_compiler_enabled": "true"}, "ml.p3.2xlarge", {}, Compiler.XLA),
        ({"sagemaker_training_compiler_enabled": "false"}, "ml.p3.2xlarge", {}, Compiler.NONE),
        ({}, "ml.trn1.32xlarge", {"HOTFIRE_COMPILER": "none"}, Compiler.NONE),
        ({}, "ml.p3.2xlarge", {"HOTFIRE_COMPILER": "inductor"}, Compiler.INDUCTOR),
    ],
)
def test_the_compiler(
    hyperparameters: dict[str, Any],
    instance_type: str,
    environment: dict[str, str],
    compiler: Compiler,
) -> None:
    env = make(hyperparameters, instance_type=instance_type, environment=environment)
    assert decide(env).compiler is compiler


@pytest.mark.parametrize(
    ("hyperparameters", "environment", "debug"),
    [
        ({}, {}, False),
        ({"sagemaker_training_compiler_debug_mode": "true"}, {}, True),
        ({"sagemaker_training_compiler_debug_mode": "false"}, {}, False),
        ({}, {"HOTFIRE_COMPILER_DEBUG": "1"}, True),
    ],
)
def test_the_compilers_debug_mode(
    hyperparameters: dict[str, Any], environment: dict[str, str], debug: bool
) -> None:
    assert decide(make(hyperparameters, environment=environment)).compiler_debug is debug


def test_an_unknown_compiler_is_refused() -> None:
    with pytest.raises(ValidationError, match="HOTFIRE_COMPILER='gcc'"):
        decide(make(environment={"HOTFIRE_COMPILER": "gcc"}))


@pytest.mark.parametrize(
    ("hyperparameters", "name"),
    [
        ({"sagemaker_mpi_enabled": True}, "mpi distribution.*mpirun is not installed"),
        ({"sagemaker_distributed_dataparallel_enabled": True}, "smdistributed data parallel"),
        ({"mp_parameters": {"partitions": 2}}, "smdistributed model parallel"),
        ({"sagemaker_pytorch_ddp_enabled": True}, "pytorchddp"),
        ({"sagemaker_parameter_server_enabled": True}, "parameter_server.*TensorFlow"),
        (
            {"sagemaker_multi_worker_mirrored_strategy_enabled": True},
            "multi_worker_mirrored_strategy.*TensorFlow",
        ),
    ],
)
def test_other_distributions_are_refused_by_name_with_a_way_out(
    hyperparameters: dict[str, Any], name: str
) -> None:
    with pytest.raises(UnsupportedError, match=name) as refused:
        decide(make(hyperparameters))
    assert refused.value.do


def test_a_distribution_that_is_switched_off_is_not_refused() -> None:
    off = {"sagemaker_distributed_dataparallel_enabled": False, "sagemaker_mpi_enabled": "false"}
    assert decide(make(off)).launcher is Launcher.PROCESS


def test_only_the_groups_of_the_distribution_take_part() -> None:
    groups = [
        {"instance_group_name": "cpu", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
        {"instance_group_name": "gpu", "instance_type": "ml.p3.8xlarge", "hosts": ["algo-2"]},
    ]
    asked = {**TORCHRUN, "sagemaker_distribution_instance_groups": ["gpu"]}
    env = make(asked, hosts=2, groups=groups)
    assert decide(env).launcher is Launcher.PROCESS
    there = derive(
        hyperparameters={key: json.dumps(value) for key, value in asked.items()},
        resource_config={
            **env.resource_config,
            "current_host": "algo-2",
            "current_group_name": "gpu",
        },
        devices=Devices(cpus=2, gpus=4),
    )
    launch = decide(there)
    assert (launch.launcher, launch.hosts, launch.workers) == (Launcher.TORCHRUN, ("algo-2",), 4)


def test_the_rank_of_a_host_is_its_place_in_the_list_beyond_nine_hosts() -> None:
    names = sorted(f"algo-{number}" for number in range(1, 13))
    env = derive(
        hyperparameters={"sagemaker_torch_distributed_enabled": "true"},
        resource_config={"hosts": names, "current_host": "algo-2"},
        devices=Devices(cpus=1),
    )
    assert decide(env).node_rank == 4


def test_what_the_job_is_called_and_where_its_code_is() -> None:
    env = make(
        {
            "sagemaker_program": "train.py",
            "sagemaker_submit_directory": "s3://bucket/code.tar.gz",
            "sagemaker_job_name": "demo",
            "sagemaker_region": "eu-west-1",
            "sagemaker_container_log_level": 10,
            "lr": 0.1,
        }
    )
    assert (env.program, env.submit_directory) == ("train.py", "s3://bucket/code.tar.gz")
    assert (env.job_name, env.region, env.log_level) == ("demo", "eu-west-1", 10)
    assert env.hyperparameters == {"lr": 0.1}


def test_the_variables_that_the_toolkit_reads_and_forgets_count_here() -> None:
    env = make(
        environment={
            "SAGEMAKER_SUBMIT_DIRECTORY": "/opt/ml/input/data/code",
            "SAGEMAKER_CONTAINER_LOG_LEVEL": "40",
            "TRAINING_JOB_NAME": "Demo",
            "AWS_REGION": "us-west-2",
        }
    )
    assert env.submit_directory == "/opt/ml/input/data/code"
    assert env.variables()["SM_MODULE_DIR"] == "/opt/ml/input/data/code"
    assert env.variables()["SM_LOG_LEVEL"] == "40"
    assert (env.job_name, env.region) == ("Demo", "us-west-2")


def test_directories_follow_the_base_directory() -> None:
    env = derive(
        hyperparameters={},
        resource_config={"hosts": ["algo-1"], "current_host": "algo-1"},
        input_data_config={"train": {}},
        devices=Devices(cpus=1),
        base_dir=PurePosixPath("/scratch/ml"),
    )
    assert env.variables()["SM_CHANNEL_TRAIN"] == "/scratch/ml/input/data/train"
    assert env.variables()["SM_MODEL_DIR"] == "/scratch/ml/model"


def test_arguments_are_what_scripts_have_been_written_against() -> None:
    values = {"b": True, "n": None, "lr": 1.10, "l": [1, 2], "d": {"y": 2, "x": 1}, "text": "a b"}
    assert command_line_arguments(values) == [
        *("-b", "True"),
        *("-d", "x=1,y=2"),
        *("-l", "[1, 2]"),
        *("--lr", "1.1"),
        *("-n", ""),
        *("--text", "a b"),
    ]
