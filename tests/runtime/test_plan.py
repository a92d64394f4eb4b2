"""Plans: files, environment and command line of every host, byte for byte."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from hotfire.runtime import plan, plan_view, request, training_env
from hotfire.runtime.backend import Mount, MountMode, Place
from hotfire.runtime.layout import HostDir
from hotfire.runtime.plan import Code, CodeKind, Devices, HostPlan, Setting
from hotfire.runtime.spec import TrainingJob
from hotfire.runtime.storage import Locations

DATA = Path(__file__).parent / "data"
PYTHON = "/opt/venv/bin/python"


def document(name: str) -> dict[str, Any]:
    return request.load_text((DATA / name).read_text(encoding="utf-8"), name)


def parsed(raw: dict[str, Any], region: str = "us-east-1") -> TrainingJob:
    return request.parse(raw, region=region)


def planned(
    job: TrainingJob,
    *,
    ml_root: str = "/opt/ml",
    code: Code | None = None,
    mounts: dict[str, tuple[Mount, ...]] | None = None,
    manifests: dict[str, str] | None = None,
    **setting: Any,
) -> dict[str, HostPlan]:
    hosts = job.resource_config.hosts
    places = {
        host: Place(
            host=host,
            address=f"127.77.0.{number}",
            ml_root=PurePosixPath(ml_root),
            network_interface="lo",
        )
        for number, host in enumerate(hosts, 1)
    }
    dirs = {host: HostDir(Path("/jobs/j/1") / host) for host in hosts}
    plans = plan.plan(
        job,
        Setting(**{"python": PYTHON, "base_env": {"PATH": "/usr/bin:/bin"}, **setting}),
        places,
        dirs,
        mounts or {},
        plan.code_of(job) if code is None else code,
        manifests,
    )
    assert [one.spec.host for one in plans] == list(hosts)
    return {one.spec.host: one for one in plans}


def config(host: HostPlan, name: str) -> str:
    return host.files[f"input/config/{name}.json"]


# --- files -------------------------------------------------------------------------------------


def test_the_three_files_byte_for_byte() -> None:
    job = parsed(document("sdk_torch_distributed.json"))
    second = planned(job)["algo-2"]
    assert json.loads(config(second, "hyperparameters")) == job.hyper_parameters
    assert config(second, "hyperparameters").startswith(
        '{"num_train_epochs":"1","learning_rate":"5e-05",'
    )
    assert config(second, "inputdataconfig") == (
        '{"train":{"TrainingInputMode":"File","S3DistributionType":"FullyReplicated",'
        '"RecordWrapperType":"None"},"test":{"TrainingInputMode":"File",'
        '"S3DistributionType":"FullyReplicated","RecordWrapperType":"None"}}'
    )
    assert config(second, "resourceconfig") == (
        '{"current_host":"algo-2","current_instance_type":"ml.trn1.2xlarge",'
        '"current_group_name":"homogeneousCluster","hosts":["algo-1","algo-2"],'
        '"instance_groups":[{"instance_group_name":"homogeneousCluster",'
        '"instance_type":"ml.trn1.2xlarge","hosts":["algo-1","algo-2"]}],'
        '"network_interface_name":"lo","topology":null}'
    )


def test_nothing_asked_for_is_nothing_written() -> None:
    only = planned(parsed(document("minimal.json")))["algo-1"]
    assert set(only.files) == {
        f"input/config/{name}.json"
        for name in ("hyperparameters", "inputdataconfig", "resourceconfig")
    }
    assert config(only, "hyperparameters") == "{}" == config(only, "inputdataconfig")
    assert json.loads(config(only, "resourceconfig"))["current_instance_type"] == "local"


def test_a_heterogeneous_cluster() -> None:
    hosts = planned(parsed(document("heterogeneous.yaml")))
    assert list(hosts)[:4] == ["algo-1", "algo-10", "algo-11", "algo-12"]
    trains, feeds = hosts["algo-10"], hosts["algo-12"]
    # A channel with InstanceGroupNames reaches those groups alone.
    assert list(json.loads(config(trains, "inputdataconfig"))) == ["shared"]
    assert json.loads(config(feeds, "inputdataconfig"))["images"] == {
        "ContentType": "application/x-image",
        "TrainingInputMode": "File",
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": "None",
    }
    resources = json.loads(config(feeds, "resourceconfig"))
    assert resources["current_group_name"] == "data"
    assert resources["current_instance_type"] == "ml.c5.xlarge"
    assert [group["instance_group_name"] for group in resources["instance_groups"]] == [
        "train",
        "data",
    ]
    assert resources["hosts"] == sorted(f"algo-{number}" for number in range(1, 13))
    assert config(feeds, "checkpointconfig") == '{"LocalPath":"/opt/ml/state"}'
    assert "nvidia-smi" in trains.executables
    assert "exit 6" in feeds.executables["nvidia-smi"]


def test_manifests_lie_beside_the_channels_of_the_host() -> None:
    manifests = {"images": "images/\ns3://bucket/images/a\n"}
    hosts = planned(parsed(document("heterogeneous.yaml")), manifests=manifests)
    assert hosts["algo-11"].files["input/data/images-manifest"] == manifests["images"]
    assert "input/data/images-manifest" not in hosts["algo-1"].files


def test_files_of_the_debugger_and_of_tensorboard() -> None:
    raw = document("sdk_torch_distributed.json")
    raw["TensorBoardOutputConfig"] = {"S3OutputPath": "s3://b/tb"}
    raw["DebugHookConfig"] = {"S3OutputPath": "s3://b/debug-output"}
    host = planned(parsed(raw))["algo-1"]
    assert config(host, "debughookconfig") == (
        '{"S3OutputPath":"s3://b/debug-output","LocalPath":"/opt/ml/output/tensors",'
        '"HookParameters":null,"CollectionConfigurations":null}'
    )
    assert config(host, "tensorboardoutputconfig") == (
        '{"S3OutputPath":"s3://b/tb","LocalPath":"/opt/ml/output/tensorboard/"}'
    )
    assert json.loads(config(host, "profilerconfig")) == raw["ProfilerConfig"]
    raw["ProfilerConfig"]["DisableProfiler"] = True
    assert "input/config/profilerconfig.json" not in planned(parsed(raw))["algo-1"].files
    ml = host.spec.dir.ml
    assert {ml.output / "tensors", ml.output / "tensorboard"} <= set(host.directories)


def test_switches_for_files_that_came_and_went() -> None:
    raw = document("heterogeneous.yaml")
    raw["InputDataConfig"][0]["ShuffleConfig"] = {"Seed": 3}
    host = planned(parsed(raw), topology=False, write_init_config=True)["algo-11"]
    assert "topology" not in json.loads(config(host, "resourceconfig"))
    init = json.loads(config(host, "init-config"))
    assert init["hostConfig"] == {"clusterSize": 12, "hostNumber": 11}
    assert init["inputMode"] == "FILE"
    assert (
        init["channels"]["images"]["s3DataSource"]["s3DataDistributionType"] == "FULLY_REPLICATED"
    )
    assert init["channels"]["images"]["shuffleConfig"] == {"seed": 3}
    assert init["channels"]["shared"]["fileSystemDataSource"]["fileSystemId"].startswith("fs-")
    assert init["checkpointChannel"]["outputPath"] == "/opt/ml/state"
    assert json.loads(config(host, "metric-definition-regex"))[0]["Name"] == "loss"
    assert config(host, "upstreamoutputdataconfig") == "[]"


def test_directories() -> None:
    host = planned(parsed(document("heterogeneous.yaml")))["algo-1"]
    here = host.spec.dir
    assert set(here.ml.directories()) < set(host.directories)
    assert {here.home, here.bin, here.ml.root / "state"} <= set(host.directories)
    assert Path(host.spec.env["TMPDIR"]) in host.directories
    raw = document("minimal.json")
    raw["CheckpointConfig"] = {"S3Uri": "s3://b/c", "LocalPath": "/state"}
    outside = planned(parsed(raw))["algo-1"]
    assert not any("state" in path.parts for path in outside.directories)
    assert config(outside, "checkpointconfig") == '{"LocalPath":"/state"}'


# --- environment -------------------------------------------------------------------------------


def test_the_environment_is_the_contracts_and_nothing_else() -> None:
    raw = document("sdk_torch_distributed.json")
    raw["TrainingJobName"] = "Mixed-Case"
    host = planned(parsed(raw, "eu-west-1"), master_port=4711, grace=30)["algo-2"]
    env = dict(host.spec.env)
    root = host.spec.dir.root
    assert env.pop("HOSTNAME") == host.spec.hostname
    assert env == {
        "PATH": f"{root}/bin:/opt/venv/bin:/usr/bin:/bin",
        "HOME": f"{root}/home",
        "TMPDIR": f"{root}/scratch/tmp",
        "PWD": "/",
        "PYTHONUNBUFFERED": "1",
        "MALLOC_ARENA_MAX": "64",
        "TRAINING_JOB_NAME": "Mixed-Case",
        "TRAINING_JOB_ARN": "arn:aws:sagemaker:eu-west-1:123456789012:training-job/mixed-case",
        "AWS_REGION": "eu-west-1",
        "AWS_EXECUTION_ENV": "AWS_ECS_EC2",
        "DMLC_INTERFACE": "lo",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "SAGEMAKER_METRICS_DIRECTORY": "/opt/ml/output/metrics/sagemaker",
        "HOTFIRE_HOSTS": '{"algo-1":"127.77.0.1","algo-2":"127.77.0.2"}',
        "HOTFIRE_MASTER_PORT": "4711",
        "HOTFIRE_GRACE": "30",
        "HOTFIRE_DEVICE": "cpu",
    }


def test_precedence_is_image_then_request_then_platform() -> None:
    raw = document("minimal.json")
    raw["Environment"] = {
        "LANG": "de",
        "TRAINING_JOB_NAME": "forged",
        "HOTFIRE_HOSTS": "forged",
        "PATH": "/mine",
        "PYTHONPATH": "/mine/lib",
        "PYTHONUNBUFFERED": "",
        "TMPDIR": "/mytmp",
    }
    env = planned(
        parsed(raw),
        base_env={"LANG": "C", "TZ": "UTC", "TRAINING_JOB_NAME": "image"},
        pythonpath=(Path("/only/hotfire"),),
        platform_env={"EXTRA": "1"},
    )["algo-1"].spec.env
    assert env["LANG"] == "de"
    assert env["TZ"] == "UTC"
    assert env["TRAINING_JOB_NAME"] == "minimal"
    assert env["HOTFIRE_HOSTS"] == '{"algo-1":"127.77.0.1"}'
    assert env["PATH"].endswith("/bin:/opt/venv/bin:/mine")
    assert env["PYTHONPATH"] == "/only/hotfire:/mine/lib"
    assert env["PYTHONUNBUFFERED"] == ""
    assert env["TMPDIR"] == "/mytmp"
    assert env["EXTRA"] == "1"


def test_optional_variables() -> None:
    job = parsed(document("minimal.json"))
    plain = planned(job)["algo-1"].spec.env
    assert not {
        "HOTFIRE_PROCESSES_PER_HOST",
        "HOTFIRE_SHIMS",
        "HOTFIRE_CACHE",
        "HOTFIRE_DEVICE",
        "NVIDIA_VISIBLE_DEVICES",
        "SAGEMAKER_BASE_DIR",
        "SAGEMAKER_METRICS_DIRECTORY",
        "PYTHONPATH",
    } & set(plain)
    assert not any(
        name.startswith(("SM_", "AWS_ACCESS", "AWS_SECRET", "AWS_CONTAINER")) for name in plain
    )
    env = planned(job, processes_per_host=4, shims="-compat", cache=Path("/cache"))[
        "algo-1"
    ].spec.env
    assert env["HOTFIRE_PROCESSES_PER_HOST"] == "4"
    assert env["HOTFIRE_SHIMS"] == "-compat"
    assert env["HOTFIRE_CACHE"] == "/cache"


def test_devices_are_emulated_unless_the_type_is_local_or_they_are_real() -> None:
    local, trn1 = document("minimal.json"), document("minimal.json")
    trn1["ResourceConfig"]["InstanceType"] = "ml.trn1.2xlarge"
    assert planned(parsed(local))["algo-1"].executables == {}
    assert set(planned(parsed(trn1))["algo-1"].executables) == {"neuron-ls", "nvidia-smi"}
    real = planned(parsed(trn1), devices=Devices.REAL)["algo-1"]
    assert real.executables == {} and "HOTFIRE_DEVICE" not in real.spec.env
    forced = planned(parsed(local), devices=Devices.EMULATED)["algo-1"]
    assert forced.spec.env["HOTFIRE_DEVICE"] == "cpu" and forced.executables == {}


def test_host_names_look_like_ec2_and_differ() -> None:
    raw = document("heterogeneous.yaml")
    east, west = planned(parsed(raw)), planned(parsed(raw, "eu-west-1"))
    names = [host.spec.hostname for host in east.values()]
    assert len(set(names)) == 12
    assert all(name.startswith("ip-10-") and name.endswith(".ec2.internal") for name in names)
    assert names == [host.spec.hostname for host in planned(parsed(raw)).values()]
    assert west["algo-1"].spec.hostname.endswith(".eu-west-1.compute.internal")
    assert max(map(len, names)) <= 64


# --- command line ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entrypoint", "arguments", "argv"),
    [
        ([], [], (PYTHON, "-m", "hotfire.entrypoints.train", "train")),
        (["a", "b c"], [], ("a", "b c")),
        (["a"], ["$X", "*"], ("a", "$X", "*")),
    ],
)
def test_the_command_line(
    entrypoint: list[str], arguments: list[str], argv: tuple[str, ...]
) -> None:
    raw = document("minimal.json")
    if entrypoint:
        raw["AlgorithmSpecification"]["ContainerEntrypoint"] = entrypoint
    if arguments:
        raw["AlgorithmSpecification"]["ContainerArguments"] = arguments
    host = planned(parsed(raw))["algo-1"]
    assert host.spec.argv == argv
    assert host.spec.cwd == "/"


# --- code --------------------------------------------------------------------------------------

SUBMITTED: dict[str, tuple[str, CodeKind, str | None]] = {
    "directory": ("file:///home/me/src", CodeKind.DIRECTORY, "/opt/ml/code"),
    "archive": (
        "file:///home/me/100%25.tar.gz",
        CodeKind.ARCHIVE,
        "/opt/ml/input/code/sourcedir.tar.gz",
    ),
    "s3": ("s3://elsewhere/c.tar.gz", CodeKind.NONE, None),
    "mapped s3": (
        "s3://bucket/x/sourcedir.tar.gz",
        CodeKind.ARCHIVE,
        "/opt/ml/input/code/sourcedir.tar.gz",
    ),
    "git": ("git+https://host/r@main", CodeKind.NONE, None),
    "in the container": ("/opt/ml/input/data/code/sourcedir.tar.gz", CodeKind.NONE, None),
}


@pytest.mark.parametrize(("address", "kind", "target"), SUBMITTED.values(), ids=SUBMITTED)
def test_how_code_reaches_a_host(
    address: str, kind: CodeKind, target: str | None, tmp_path: Path
) -> None:
    raw = document("sdk_torch_distributed.json")
    raw["HyperParameters"]["sagemaker_submit_directory"] = json.dumps(address)
    job = parsed(raw)
    code = plan.code_of(job, Locations.parse([f"s3://bucket={tmp_path}"], tmp_path))
    assert code.kind is kind
    host = planned(job, code=code)["algo-1"]
    sent = json.loads(config(host, "hyperparameters"))["sagemaker_submit_directory"]
    assert json.loads(sent) == (target or address)
    if target is None:
        assert host.spec.mounts == ()
        return
    (mount,) = host.spec.mounts
    assert str(mount.target) == target
    directory = kind is CodeKind.DIRECTORY
    assert mount.mode is (MountMode.COPY_ON_WRITE if directory else MountMode.READ_ONLY)
    assert "%25" not in str(mount.source)


def test_mounts_of_channels_come_first() -> None:
    raw = document("minimal.json")
    raw["HyperParameters"] = {"sagemaker_submit_directory": "file:///src"}
    channel = Mount(
        source=Path("/data"),
        target=PurePosixPath("/opt/ml/input/data/train"),
        mode=MountMode.COPY_ON_WRITE,
    )
    host = planned(parsed(raw), mounts={"algo-1": (channel,)})["algo-1"]
    assert [str(mount.source) for mount in host.spec.mounts] == ["/data", "/src"]


# --- relocation --------------------------------------------------------------------------------


def test_relocation_rewrites_paths_and_nothing_else() -> None:
    raw = document("sdk_v3_entrypoint.json")
    raw["Environment"] = {
        "A": "/opt/ml",
        "B": "x:/opt/ml/code:/opt/mlflow:/data/opt/ml/x",
        "C": "s3://b/opt/ml/model",
    }
    raw["HyperParameters"] |= {"dir": '"/opt/ml/output/data"', "other": "/opt/ml-x"}
    raw["CheckpointConfig"] = {"S3Uri": "s3://b/c"}
    host = planned(parsed(raw), ml_root="/jobs/j/1/algo-1/ml")["algo-1"]
    root = "/jobs/j/1/algo-1/ml"
    assert host.spec.env["SAGEMAKER_BASE_DIR"] == root
    assert host.spec.env["A"] == root
    assert host.spec.env["B"] == f"x:{root}/code:/opt/mlflow:/data/opt/ml/x"
    assert host.spec.env["C"] == "s3://b/opt/ml/model"
    sent = json.loads(config(host, "hyperparameters"))
    assert sent["dir"] == f'"{root}/output/data"'
    assert sent["other"] == "/opt/ml-x"
    assert host.spec.argv[2].count(f"{root}/input/data/sm_drivers") == 2
    assert config(host, "checkpointconfig") == f'{{"LocalPath":"{root}/checkpoints"}}'
    assert "SAGEMAKER_BASE_DIR" not in planned(parsed(raw))["algo-1"].spec.env


def test_relocated_code() -> None:
    raw = document("minimal.json")
    raw["HyperParameters"] = {"sagemaker_submit_directory": '"file:///src"'}
    host = planned(parsed(raw), ml_root="/elsewhere")["algo-1"]
    assert str(host.spec.mounts[0].target) == "/elsewhere/code"
    sent = json.loads(config(host, "hyperparameters"))["sagemaker_submit_directory"]
    assert sent == '"/elsewhere/code"'


# --- what is printed ---------------------------------------------------------------------------


def secretive() -> dict[str, Any]:
    raw = document("sdk_torch_distributed.json")
    raw["Environment"] = {"HF_TOKEN": "hunter2", "INDEX": "https://me:hunter2@pypi/simple"}
    raw["HyperParameters"] |= {"hub_token": '"hunter2"', "proxy": "http://u:hunter2@p"}
    return raw


def test_the_plan_is_json_and_text_without_secrets() -> None:
    job = parsed(secretive())
    plans = tuple(
        planned(job, base_env={"HTTPS_PROXY": "http://u:hunter2@p", "PATH": "/bin"}).values()
    )
    hosts = plan_view.to_json(plans)
    text = plan_view.describe(plans)
    assert "hunter2" in plans[0].spec.env["HF_TOKEN"]
    assert "hunter2" not in json.dumps(hosts) + text
    assert json.loads(json.dumps(hosts)) == hosts
    assert hosts[0]["argv"] == [PYTHON, "-m", "hotfire.entrypoints.train", "train"]
    assert hosts[1]["host"] == "algo-2"
    assert hosts[0]["files"]["input/config/resourceconfig.json"] == config(
        plans[0], "resourceconfig"
    )
    assert text.endswith("\n")


def test_the_dry_run_shows_what_the_script_will_see() -> None:
    plans = tuple(planned(parsed(document("sdk_torch_distributed.json"))).values())
    shown = plan_view.to_json(plans)[0]["script"]
    assert shown["program"] == "train.py"
    assert " ".join(shown["arguments"]) == (
        "--learning_rate 5e-05 --model_name_or_path bert-base-uncased --num_train_epochs 1"
    )
    assert (shown["launcher"], shown["workers"], shown["compiler"]) == ("torchrun", 2, "xla")
    assert shown["variables"]["SM_NUM_NEURONS"] == "2"
    text = plan_view.describe(plans)
    assert "train.py --learning_rate 5e-05 --model_name_or_path bert-base-uncased" in text
    assert "torchrun with 2 workers on each of 2 hosts" in text
    assert text.count("  compiler  xla\n") == 1
    # What both hosts share is said once.
    assert text.count("TRAINING_JOB_ARN") == 1
    assert text.count("current_host") == 2


def test_without_a_script_the_built_in_program_is_shown() -> None:
    plans = tuple(planned(parsed(document("minimal.json"))).values())
    shown = plan_view.to_json(plans, training_env.Devices(cpus=4, gpus=2))[0]["script"]
    assert shown["program"] == training_env.BUILT_IN_PROGRAM
    assert shown["workers"] == 2
    assert shown["variables"]["SM_NUM_CPUS"] == "4"


def test_long_and_many_lined_texts_take_one_line() -> None:
    raw = document("minimal.json")
    raw["Environment"] = {"LINES": "one\ntwo\x1b[31m", "LONG": "x" * 500}
    raw["HyperParameters"] = {f"h{number}": "y" * 100 for number in range(50)}
    text = plan_view.describe(tuple(planned(parsed(raw)).values()))
    assert "variable  LINES=one ... (2 lines)\n" in text
    assert "\x1b" not in text
    assert "x" * 500 in text
    assert "characters)\n" in text


def test_an_entry_point_of_its_own_has_no_script() -> None:
    plans = tuple(planned(parsed(document("sdk_v3_entrypoint.json"))).values())
    assert plan_view.to_json(plans)[0]["script"] is None
    assert "/bin/bash -c" in plan_view.describe(plans)


def test_plans_are_values() -> None:
    job = parsed(document("sdk_torch_distributed.json"))
    assert planned(job) == planned(job)
    with pytest.raises(dataclasses.FrozenInstanceError):
        planned(job)["algo-1"].files = {}  # type: ignore[misc]


def test_a_planned_host_can_be_laid_out_and_its_tools_run(tmp_path: Path) -> None:
    """The plan carried out by hand: a real process counts the devices through the planned PATH."""
    raw = document("minimal.json")
    raw["ResourceConfig"]["InstanceType"] = "ml.trn1.2xlarge"
    job = parsed(raw)
    here = HostDir(tmp_path / "algo-1")
    (host,) = plan.plan(
        job,
        Setting(python=sys.executable, base_env={"PATH": os.defpath}),
        {"algo-1": Place(host="algo-1", address="127.0.0.1", ml_root=PurePosixPath(here.ml.root))},
        {"algo-1": here},
        {},
        Code(),
    )
    for directory in host.directories:
        directory.mkdir(parents=True)
    for relative, text in host.files.items():
        (here.ml.root / relative).write_text(text, encoding="utf-8")
    for name, text in host.executables.items():
        (here.bin / name).write_text(text)
        (here.bin / name).chmod(0o755)
    program = (
        "import json, os, pathlib, subprocess, tempfile\n"
        "base = pathlib.Path(os.environ['SAGEMAKER_BASE_DIR'])\n"
        "host = json.loads((base / 'input/config/resourceconfig.json').read_text())['current_host']\n"
        "cores = json.loads(subprocess.check_output(['neuron-ls', '-j']))[0]['nc_count']\n"
        "gpus = subprocess.run(['nvidia-smi'], stderr=subprocess.DEVNULL).returncode\n"
        "print(host, cores, gpus != 0, tempfile.gettempdir() == os.environ['TMPDIR'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=dict(host.spec.env),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["algo-1", "2", "True", "True"]
