"""Flags as shorthand for a request: what is sent, and what is refused."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.runtime import flags, request, training_env
from hotfire.runtime.errors import UnsupportedError, ValidationError
from hotfire.runtime.flags import Flags

NOW = datetime(2026, 11, 20, 12, 3, 4, 567_890, tzinfo=UTC)
CWD = Path("/home/me/project")


def made(**given: Any) -> dict[str, Any]:
    return flags.to_request(Flags(**given), now=NOW, cwd=CWD)


def values(**given: Any) -> dict[str, str]:
    sent: dict[str, str] = made(**given)["HyperParameters"]
    return sent


def test_nothing_but_a_script() -> None:
    raw = made(script="train.py")
    assert raw == {
        "TrainingJobName": "train-2026-11-20-12-03-04-567",
        "RoleArn": "arn:aws:iam::000000000000:role/hotfire",
        "AlgorithmSpecification": {"TrainingImage": "hotfire", "TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": "file:///home/me/project/hotfire-out"},
        "ResourceConfig": {"InstanceType": "local", "InstanceCount": 1, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86_400},
        "HyperParameters": {
            "sagemaker_program": '"train.py"',
            "sagemaker_submit_directory": '"file:///home/me/project"',
            "sagemaker_container_log_level": "20",
            "sagemaker_job_name": '"train-2026-11-20-12-03-04-567"',
            "sagemaker_region": '"us-east-1"',
        },
    }
    request.parse(raw, region="us-east-1")


def test_without_a_script_the_built_in_program_is_meant() -> None:
    sent = values(hyperparameters=("num_train_epochs=1",))
    assert "sagemaker_program" not in sent
    assert "sagemaker_submit_directory" not in sent
    assert sent["num_train_epochs"] == "1"


def test_every_flag_arrives() -> None:
    raw = made(
        script="train.py",
        source_dir="src",
        name="job",
        image="pytorch",
        role="arn:aws:iam::123456789012:role/r",
        region="eu-west-1",
        inputs=("train=./data/train", "test=s3://bucket/test"),
        input_modes=("train=Pipe",),
        sharding=("train=ShardedByS3Key",),
        record_wrapper=("train=RecordIO",),
        compression=("train=Gzip",),
        shuffle=("train=59",),
        environment=("A=b=c", "EMPTY="),
        metrics=("loss=loss = (.*)",),
        instance_type="ml.trn1.2xlarge",
        instance_count=2,
        output="out",
        checkpoints="/checkpoints",
        max_run=60,
        max_wait=120,
        network_isolation=True,
    )
    job = request.parse(raw, region="eu-west-1")
    train, test = raw["InputDataConfig"]
    assert train == {
        "ChannelName": "train",
        "DataSource": {
            "S3DataSource": {
                "S3DataType": "S3Prefix",
                "S3Uri": "file:///home/me/project/data/train",
                "S3DataDistributionType": "ShardedByS3Key",
            }
        },
        "InputMode": "Pipe",
        "RecordWrapperType": "RecordIO",
        "CompressionType": "Gzip",
        "ShuffleConfig": {"Seed": 59},
    }
    assert test["DataSource"]["S3DataSource"]["S3Uri"] == "s3://bucket/test"
    assert job.environment == {"A": "b=c", "EMPTY": ""}
    assert job.algorithm_specification.metric_definitions[0].regex == "loss = (.*)"
    assert job.checkpoint_config is not None
    assert job.checkpoint_config.s3_uri == "file:///checkpoints"
    assert job.output_data_config.s3_output_path == "file:///home/me/project/out"
    assert job.stopping_condition.max_wait_time_in_seconds == 120
    assert job.enable_managed_spot_training and job.enable_network_isolation
    assert job.hyper_parameters["sagemaker_region"] == '"eu-west-1"'
    assert job.resource_config.hosts == ("algo-1", "algo-2")
    assert job.algorithm_specification.training_image == "pytorch"


# --- names -------------------------------------------------------------------------------------


@given(st.text(max_size=80), st.datetimes(timezones=st.timezones()))
def test_the_name_always_fits_the_services_pattern(stem: str, now: datetime) -> None:
    name = flags.default_name(f"/x/{stem}.py".replace("\0", ""), now)
    assert len(name) <= 63
    assert re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", name)


def test_the_names_time_is_utc() -> None:
    east = NOW.astimezone(timezone(timedelta(hours=9)))
    assert flags.default_name("src/my_train.v2.py", east) == "my-train-v2-2026-11-20-12-03-04-567"


# --- hyperparameters ---------------------------------------------------------------------------

SENT = {
    # typed: (sent, as an argument of the script)
    "k=5": ("5", "5"),
    "k=5e-5": ("5e-5", "5e-05"),
    "k=1.10": ("1.10", "1.1"),
    "k:=1.10": ('"1.10"', "1.10"),
    "k=true": ("true", "True"),
    "k=True": ('"True"', "True"),
    "k:=true": ('"true"', "true"),
    "k=hello": ('"hello"', "hello"),
    "k=bert base": ('"bert base"', "bert base"),
    'k="quoted"': ('"quoted"', "quoted"),
    "k=": ('""', ""),
    "k=a=b": ('"a=b"', "a=b"),
    "k=[1, 2]": ("[1, 2]", "[1, 2]"),
    'k={"a": 1}': ('{"a": 1}', "a=1"),
    "k=NaN": ('"NaN"', "NaN"),
    "k=größe": ('"größe"', "größe"),
    "k=007": ('"007"', "007"),
    "k=null": ("null", ""),
}


@pytest.mark.parametrize("typed", SENT)
def test_hyperparameters_travel_as_the_sdk_sends_them(typed: str) -> None:
    sent, argument = SENT[typed]
    got = values(hyperparameters=(typed,))["k"]
    assert got == sent
    decoded = training_env.decode_hyperparameters({"k": got})
    assert training_env.command_line_arguments(decoded) == ["-k", argument]


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_a_forced_string_arrives_as_typed(text: str) -> None:
    got = values(hyperparameters=(f"key:={text}",))["key"]
    assert json.loads(got) == text


def test_a_users_own_sagemaker_key_wins() -> None:
    sent = values(script="train.py", hyperparameters=("sagemaker_container_log_level=10",))
    assert sent["sagemaker_container_log_level"] == "10"


@pytest.mark.parametrize(
    ("compiler", "debug", "hyperparameters", "environment"),
    [
        (None, False, None, {}),
        ("xla", False, ('"true"', '"false"'), {}),
        ("xla", True, ('"true"', '"true"'), {}),
        ("inductor", False, None, {"HOTFIRE_COMPILER": "inductor"}),
        ("none", True, None, {"HOTFIRE_COMPILER": "none", "HOTFIRE_COMPILER_DEBUG": "1"}),
        (None, True, None, {"HOTFIRE_COMPILER_DEBUG": "1"}),
    ],
)
def test_a_compiler_is_the_sdks_configuration_or_a_variable(
    compiler: str | None,
    debug: bool,
    hyperparameters: tuple[str, str] | None,
    environment: dict[str, str],
) -> None:
    sent = made(script="train.py", compiler=compiler, compiler_debug=debug)
    prefix = "sagemaker_training_compiler"
    found = [sent["HyperParameters"].get(f"{prefix}_{key}") for key in ("enabled", "debug_mode")]
    assert found == list(hyperparameters or (None, None))
    assert sent.get("Environment", {}) == environment


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        (
            "torch_distributed",
            {
                "sagemaker_torch_distributed_enabled": "true",
                "sagemaker_instance_type": '"ml.trn1.2xlarge"',
            },
        ),
        (
            "pytorchxla",
            {
                "sagemaker_pytorch_xla_multi_worker_enabled": "true",
                "sagemaker_training_compiler_enabled": '"true"',
                "sagemaker_training_compiler_debug_mode": '"false"',
            },
        ),
        (
            "mpi",
            {
                "sagemaker_mpi_enabled": "true",
                "sagemaker_mpi_custom_mpi_options": '""',
                "sagemaker_mpi_num_of_processes_per_host": "4",
            },
        ),
    ],
)
def test_distributions_set_the_sdks_keys(kind: str, sent: dict[str, str]) -> None:
    with_it = values(
        script="t.py", distribution=kind, instance_type="ml.trn1.2xlarge", processes_per_host=4
    )
    without = values(script="t.py")
    assert {key: value for key, value in with_it.items() if key not in without} == sent


@pytest.mark.parametrize(
    "kind",
    ["smdistributed.dataparallel", "smdistributed.modelparallel", "pytorchddp", "parameter_server"],
)
def test_distributions_of_aws_alone_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedError):
        request.parse(made(script="t.py", distribution=kind), region="us-east-1")


def test_an_entry_point_of_its_own_gets_hyperparameters_as_typed() -> None:
    raw = made(entrypoint=("/bin/sh", "-c"), arguments=("env",), hyperparameters=("a=b", "c:=1"))
    assert raw["HyperParameters"] == {"a": "b", "c": "1"}
    assert raw["AlgorithmSpecification"]["ContainerEntrypoint"] == ["/bin/sh", "-c"]


# --- where the program is ----------------------------------------------------------------------

PROGRAMS: dict[str, tuple[dict[str, Any], str, str]] = {
    "beside": ({"script": "train.py"}, "train.py", "file:///home/me/project"),
    "below": ({"script": "src/train.py"}, "train.py", "file:///home/me/project/src"),
    "absolute": ({"script": "/x/t.py"}, "t.py", "file:///x"),
    "in the source": (
        {"script": "t.py", "source_dir": "src"},
        "t.py",
        "file:///home/me/project/src",
    ),
    "typed from here": (
        {"script": "src/a/t.py", "source_dir": "./src/"},
        "a/t.py",
        "file:///home/me/project/src",
    ),
    "absolute in the source": (
        {"script": "/home/me/project/src/a/t.py", "source_dir": "src"},
        "a/t.py",
        "file:///home/me/project/src",
    ),
    "source above": ({"script": "t.py", "source_dir": ".."}, "t.py", "file:///home/me"),
    "source here": ({"script": "a/t.py", "source_dir": "."}, "a/t.py", "file:///home/me/project"),
    "archive": (
        {"script": "t.py", "source_dir": "code.tar.gz"},
        "t.py",
        "file:///home/me/project/code.tar.gz",
    ),
    "s3": ({"script": "t.py", "source_dir": "s3://b/c.tar.gz"}, "t.py", "s3://b/c.tar.gz"),
    "percent and space": ({"script": "/a b/100%/t.py"}, "t.py", "file:///a b/100%25"),
    "git": (
        {"script": "t.py", "git_repo": "https://host/r.git"},
        "t.py",
        "git+https://host/r.git",
    ),
    "git branch": (
        {"script": "t.py", "git_repo": "https://host/r", "git_branch": "v1", "source_dir": "a b/c"},
        "t.py",
        "git+https://host/r@v1#subdirectory=a%20b/c",
    ),
    "git commit": (
        {"script": "t.py", "git_repo": "git@host:o/r", "git_branch": "b", "git_commit": "abc"},
        "t.py",
        "git+ssh://git@host/o/r@abc",
    ),
    "git here": ({"script": "t.py", "git_repo": "../r"}, "t.py", "git+file:///home/me/r"),
}


@pytest.mark.parametrize(("given", "program", "directory"), PROGRAMS.values(), ids=PROGRAMS)
def test_where_the_program_is(given: dict[str, Any], program: str, directory: str) -> None:
    sent = values(**given)
    assert json.loads(sent["sagemaker_program"]) == program
    assert json.loads(sent["sagemaker_submit_directory"]) == directory


# --- bad input ---------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no equals": ({"inputs": ("train",)}, "--input 'train' without '='", "NAME=VALUE"),
    "no name": ({"inputs": ("=x",)}, "without a name", "NAME=VALUE"),
    "no path": ({"inputs": ("train=",)}, "names no data", "path"),
    "input twice": ({"inputs": ("a=x", "a=y")}, "--input a is given twice", "once"),
    "mode without input": (
        {"inputs": ("train=x",), "input_modes": ("trian=Pipe",)},
        "there is no --input trian",
        "Did you mean train?",
    ),
    "shuffle": (
        {"inputs": ("train=x",), "shuffle": ("train=often",)},
        "--shuffle train=often",
        "seed",
    ),
    "hyperparameter": ({"hyperparameters": ("epochs",)}, "'epochs' is not KEY=VALUE", "-p KEY"),
    "hyperparameter twice": ({"hyperparameters": ("a=1", "a=2")}, "-p a is given twice", "once"),
    "distribution": ({"distribution": "torch_distribute"}, "is unknown", "torch_distributed"),
    "outside": (
        {"script": "../t.py", "source_dir": "src"},
        "script ../t.py is outside the source directory src",
        "within it",
    ),
    "outside, absolute": (
        {"script": "/home/me/project/src2/t.py", "source_dir": "src"},
        "outside the source directory",
        "within it",
    ),
    "outside the archive": (
        {"script": "/t.py", "source_dir": "s3://b/c.tar.gz"},
        "outside",
        "within it",
    ),
    "outside the repository": (
        {"script": "t.py", "git_repo": "https://h/r", "source_dir": "../x"},
        "outside",
        "within it",
    ),
    "source without script": ({"source_dir": "src"}, "without a script", "Name the script"),
    "branch without repository": ({"script": "t.py", "git_branch": "b"}, "need --git-repo", "Add"),
    "password": (
        {"script": "t.py", "git_repo": "https://me:hunter2@h/r"},
        "holds a password",
        "credential helper",
    ),
    "script and entry point": (
        {"script": "t.py", "entrypoint": ("sh",)},
        "cannot go with an entry point",
        "either",
    ),
    "environment": ({"environment": ("hunter2",)}, "--env without '='", "NAME=VALUE"),
}


@pytest.mark.parametrize(("given", "what", "do"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused(given: dict[str, Any], what: str, do: str) -> None:
    with pytest.raises(ValidationError) as caught:
        made(**given)
    assert what in caught.value.what
    assert do in caught.value.do
    assert "hunter2" not in str(caught.value)


def test_all_bad_input_is_told_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        made(inputs=("a",), hyperparameters=("b",), distribution="c", shuffle=("d=1",))
    for part in ("--input 'a'", "-p 'b'", "--distribution c", "--input d"):
        assert part in caught.value.what


# --- documents with flags beside them ----------------------------------------------------------


def test_a_document_under_another_name_and_source() -> None:
    raw = made(script="t.py")
    other = flags.overridden(raw, name="again", source_dir="src", cwd=CWD)
    assert other["TrainingJobName"] == "again"
    assert other["HyperParameters"]["sagemaker_job_name"] == '"again"'
    assert other["HyperParameters"]["sagemaker_submit_directory"] == '"file:///home/me/project/src"'
    assert raw["HyperParameters"]["sagemaker_job_name"] != '"again"'
    assert flags.overridden(raw, cwd=CWD) == raw


def test_a_broken_document_is_left_for_the_request_to_judge() -> None:
    assert flags.overridden({"HyperParameters": 5}, name="a", cwd=CWD) == {
        "HyperParameters": 5,
        "TrainingJobName": "a",
    }
