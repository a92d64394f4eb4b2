"""The oracle: sagemaker-training's own Environment on the same /opt/ml gives the same variables and arguments.

Deliberate differences, which the inputs here therefore leave out:

- SAGEMAKER_SUBMIT_DIRECTORY and SAGEMAKER_CONTAINER_LOG_LEVEL count where the hyperparameter is absent. The toolkit
  reads both and then forgets them.
- SAGEMAKER_JOB_NAME falls back to TRAINING_JOB_NAME, SAGEMAKER_REGION to AWS_REGION; the toolkit's are then empty.
- Values of sagemaker_job_name and sagemaker_region that are no strings become strings; the toolkit raises TypeError.
- neuron-ls printing something else than JSON counts as no cores; the toolkit raises JSONDecodeError.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hotfire.runtime import errors
from hotfire.runtime.training_env import Devices, derive

VERSION = "5.1.4"
SERVER = r"""
import contextlib, importlib, json, os, sys
answers = sys.stdout
sys.stdout = sys.stderr
first = dict(os.environ)
for line in sys.stdin:
    asked = json.loads(line)
    os.environ.clear()
    os.environ.update(first)
    os.environ.update(asked["environment"])
    os.environ["SAGEMAKER_BASE_DIR"] = asked["base"]
    from sagemaker_training import environment
    importlib.reload(environment)  # the base directory is fixed at import
    env = environment.Environment()
    answer = {"variables": env.to_env_vars(), "arguments": env.to_cmd_args()}
    answer["settings"] = {k: os.environ[k] for k in ("SAGEMAKER_JOB_NAME", "CURRENT_HOST", "SAGEMAKER_REGION")}
    print(json.dumps(answer), file=answers, flush=True)
"""
STAND_IN = "#!/bin/sh\ncat {file}\n"

Ask = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="session")
def oracle_python() -> str:
    """A Python that has sagemaker-training: HOTFIRE_ORACLE_PYTHON, else one made below ~/.cache once."""
    if given_python := os.environ.get("HOTFIRE_ORACLE_PYTHON"):
        return given_python
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = Path.home() / ".cache" / "hotfire-tests" / f"sagemaker-training-{VERSION}-py{version}"
    python = home / "bin" / "python"
    done = home / "complete"
    if not done.exists():
        # A source distribution with a C extension; pkg_resources left setuptools with 81.
        packages = [f"sagemaker-training=={VERSION}", "setuptools<81"]
        shutil.rmtree(home, ignore_errors=True)
        try:
            _make_environment(home, python, packages)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            pytest.skip(f"sagemaker-training cannot be installed here: {said.strip()[-300:]}")
        done.touch()
    return str(python)


def _make_environment(home: Path, python: Path, packages: list[str]) -> None:
    def run(*argv: str) -> None:
        subprocess.run(argv, check=True, capture_output=True, text=True)

    if uv := shutil.which("uv"):
        run(uv, "venv", "--quiet", "--python", sys.executable, str(home))
        run(uv, "pip", "install", "--quiet", "--python", str(python), *packages)
    else:
        run(sys.executable, "-m", "venv", str(home))
        run(str(python), "-m", "pip", "install", "--quiet", *packages)


class Machine:
    """Stand-ins for the device tools, whose answers can be changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir()
        for tool, file in (("neuron-ls", "neuron"), ("nvidia-smi", "gpus")):
            (self.bin / tool).write_text(STAND_IN.format(file=root / file))
            (self.bin / tool).chmod(0o755)

    def has(self, neuron_cores: list[int], gpus: int) -> None:
        chips = [{"neuron_device": i, "nc_count": n} for i, n in enumerate(neuron_cores)]
        (self.root / "neuron").write_text(json.dumps(chips))
        (self.root / "gpus").write_text("".join(f"GPU {i}: emulated\n" for i in range(gpus)))


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="session")
def ask(oracle_python: str, machine: Machine) -> Iterator[Ask]:
    """One oracle process for all questions."""
    environment = {"PATH": f"{machine.bin}:/usr/bin:/bin", "HOME": str(machine.root)}
    with subprocess.Popen(
        [oracle_python, "-W", "ignore", "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    ) as server:

        def answer(question: dict[str, Any]) -> dict[str, Any]:
            assert server.stdin is not None
            assert server.stdout is not None
            print(json.dumps(question), file=server.stdin, flush=True)
            line = server.stdout.readline()
            assert line, f"the oracle died of {question}"
            value: dict[str, Any] = json.loads(line)
            return value

        yield answer
        with contextlib.suppress(OSError):
            assert server.stdin is not None
            server.stdin.close()


# No surrogates and no null: neither files nor variables can carry them.
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
plain = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789_-.", min_size=1, max_size=12) | st.just(
    "."
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
# What the SDK sends (JSON inside a string), what others send, and numbers that look like something else.
hyperparameter_values = (
    json_values.map(json.dumps)
    | text
    | st.sampled_from(["1.10", "1e-4", "007", "True", "NaN", "-Infinity", "1e999", "[1, 2", "0x10"])
)
flags = st.dictionaries(
    st.sampled_from(
        [
            "sagemaker_mpi_enabled",
            "sagemaker_torch_distributed_enabled",
            "sagemaker_pytorch_xla_multi_worker_enabled",
            "sagemaker_distributed_dataparallel_enabled",
            "sagemaker_training_compiler_enabled",
            "sagemaker_instance_type",
        ]
    ),
    st.sampled_from(["true", "false", '"true"', '"ml.p3.2xlarge"', "0", "null"]),
    max_size=3,
)
reserved = st.fixed_dictionaries(
    {},
    optional={
        "sagemaker_program": plain.map(json.dumps)
        | st.sampled_from(["train.py", '"src/train.py"', "7"]),
        "sagemaker_submit_directory": st.sampled_from(['"s3://b/k.tar.gz"', "/opt/ml/code", "5"]),
        "sagemaker_container_log_level": st.sampled_from(["20", '"20"', "10", "null", "WARN"]),
        "sagemaker_job_name": plain.map(json.dumps),
        "sagemaker_region": st.sampled_from(['"us-west-2"', "eu-central-1"]),
        "sagemaker_enable_cloudwatch_metrics": st.just("true"),
        "default_user_module_name": plain,
        "_tuning_objective_metric": plain,
        "sagemaker_s3_output": st.just('"s3://b/out"'),
    },
)
hyperparameters = st.builds(
    lambda own, fixed, on: {**own, **fixed, **on},
    st.dictionaries(plain | text, hyperparameter_values, max_size=5),
    reserved,
    flags,
)
channels = st.dictionaries(
    plain,
    st.fixed_dictionaries(
        {"TrainingInputMode": st.sampled_from(["File", "Pipe", "FastFile"])},
        optional={"ContentType": text, "S3DistributionType": st.just("ShardedByS3Key")},
    ),
    max_size=3,
)
environments = st.fixed_dictionaries(
    {},
    optional={
        "SAGEMAKER_PROGRAM": plain | st.just("job.sh"),
        "TRAINING_JOB_NAME": plain,
        "SM_HP_MP_PARAMETERS": st.sampled_from(["{}", '{"partitions":2}', ""]),
        "SAGEMAKER_TRAINING_MODULE": st.just("sagemaker_pytorch_container.training:main"),
    },
)


@st.composite
def resource_configs(draw: st.DrawFn) -> dict[str, Any]:
    hosts = sorted(f"algo-{number}" for number in range(1, draw(st.integers(1, 12)) + 1))
    config: dict[str, Any] = {"hosts": hosts, "current_host": draw(st.sampled_from(hosts))}
    if draw(st.booleans()):
        config["network_interface_name"] = draw(st.sampled_from(["eth0", "eth1", "lo"]))
    types = ["ml.trn1.2xlarge", "ml.trn2.48xlarge", "ml.p4d.24xlarge", "local"]
    if draw(st.booleans()):
        config["current_instance_type"] = draw(st.sampled_from(types))
    if draw(st.booleans()):
        config["topology"] = draw(st.sampled_from([None, [], [{"hostName": "algo-1"}]]))
    if draw(st.booleans()):
        names = draw(st.lists(plain, min_size=1, max_size=3, unique=True))
        config["instance_groups"] = [
            {
                "instance_group_name": name,
                "instance_type": draw(st.sampled_from(types)),
                "hosts": hosts[index :: len(names)],
            }
            for index, name in enumerate(names)
        ]
        config["current_group_name"] = draw(st.sampled_from([*names, "homogeneousCluster"]))
    return config


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    resources = draw(resource_configs())
    sent = draw(hyperparameters)
    groups = [group["instance_group_name"] for group in resources.get("instance_groups", [])]
    if groups and draw(st.booleans()):
        asked = draw(st.lists(st.sampled_from(groups), unique=True))
        sent["sagemaker_distribution_instance_groups"] = json.dumps(asked)
    return {
        "hyperparameters": sent,
        "resource_config": resources,
        "input_data_config": draw(channels),
        "environment": draw(environments),
        "neuron_cores": draw(st.lists(st.sampled_from([2, 8]), max_size=2)),
        "gpus": draw(st.integers(0, 8)),
    }


EVERYDAY = {
    "hyperparameters": {
        "epochs": "1",
        "learning_rate": "5e-05",
        "model": '"bert-base-uncased"',
        "do_eval": "true",
        "nothing": "null",
        "batch-size": "32",
        "layers": "[1, 2]",
        "options": '{"b": 1, "a": {"c": null}}',
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": '"s3://bucket/job/source/sourcedir.tar.gz"',
        "sagemaker_container_log_level": "20",
        "sagemaker_job_name": '"demo"',
        "sagemaker_region": '"us-east-1"',
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_instance_type": '"ml.trn1.2xlarge"',
    },
    "resource_config": {
        "current_host": "algo-2",
        "current_instance_type": "ml.trn1.2xlarge",
        "current_group_name": "homogeneousCluster",
        "hosts": ["algo-1", "algo-2"],
        "instance_groups": [
            {
                "instance_group_name": "homogeneousCluster",
                "instance_type": "ml.trn1.2xlarge",
                "hosts": ["algo-1", "algo-2"],
            }
        ],
        "network_interface_name": "eth0",
        "topology": None,
    },
    "input_data_config": {"train": {"TrainingInputMode": "File"}, "test": {}},
    "environment": {"TRAINING_JOB_NAME": "Demo"},
    "neuron_cores": [2],
    "gpus": 0,
}


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(job=EVERYDAY)
@given(job=jobs())
def test_the_environment_is_the_toolkits(
    job: dict[str, Any], ask: Ask, machine: Machine, tmp_path: Path
) -> None:
    base = tmp_path / "ml"
    config = base / "input" / "config"
    config.mkdir(parents=True, exist_ok=True)
    (config / "hyperparameters.json").write_text(json.dumps(job["hyperparameters"]))
    (config / "resourceconfig.json").write_text(json.dumps(job["resource_config"]))
    (config / "inputdataconfig.json").write_text(json.dumps(job["input_data_config"]))
    machine.has(job["neuron_cores"], job["gpus"])

    expected = ask({"base": str(base), "environment": job["environment"]})
    env = derive(
        hyperparameters=job["hyperparameters"],
        resource_config=job["resource_config"],
        input_data_config=job["input_data_config"],
        environment=job["environment"],
        devices=Devices(
            cpus=os.cpu_count() or 1, gpus=job["gpus"], neuron_cores=sum(job["neuron_cores"])
        ),
        base_dir=PurePosixPath(base),
    )

    assert env.variables() == expected["variables"]
    assert env.arguments() == expected["arguments"]
    assert env.current_host == expected["settings"]["CURRENT_HOST"]
    if "sagemaker_job_name" in job["hyperparameters"]:
        assert env.job_name == expected["settings"]["SAGEMAKER_JOB_NAME"]
    if "sagemaker_region" in job["hyperparameters"]:
        assert env.region == expected["settings"]["SAGEMAKER_REGION"]


def test_every_variable_of_the_toolkit_is_there(ask: Ask, machine: Machine, tmp_path: Path) -> None:
    """By name, so that the comparison above cannot agree on nothing."""
    config = tmp_path / "input" / "config"
    config.mkdir(parents=True)
    for name in ("hyperparameters", "resource_config", "input_data_config"):
        file = config / f"{name.replace('_', '')}.json"
        file.write_text(json.dumps(EVERYDAY[name]))
    machine.has([2], 0)
    names = set(ask({"base": str(tmp_path), "environment": {}})["variables"])
    assert {"SM_HP_BATCH-SIZE", "SM_CHANNEL_TRAIN", "SM_TRAINING_ENV", "SM_NUM_NEURONS"} <= names
    assert len([name for name in names if not name.startswith(("SM_HP_", "SM_CHANNEL_"))]) == 31


def test_scripts_that_ask_the_toolkit_get_the_same_from_it(
    oracle_python: str, tmp_path: Path
) -> None:
    """A whole run of ``train`` in a Python that has sagemaker-training, and not hotfire's dependencies."""
    view = Path(errors.__file__).parents[2]
    config = tmp_path / "input" / "config"
    for directory in (config, tmp_path / "code"):
        directory.mkdir(parents=True)
    resources = {"hosts": ["algo-1"], "current_host": "algo-1"}
    (config / "resourceconfig.json").write_text(json.dumps(resources))
    (config / "inputdataconfig.json").write_text('{"train": {"TrainingInputMode": "File"}}')
    sent = {"sagemaker_program": '"train.py"', "lr": "0.1", "sagemaker_region": '"us-east-1"'}
    (config / "hyperparameters.json").write_text(json.dumps(sent))
    (tmp_path / "code" / "train.py").write_text(
        "import json, os, sys\n"
        "from sagemaker_training import environment\n"
        "env = environment.Environment()\n"
        "said = {name: os.environ.get(name) for name in env.to_env_vars()}\n"
        "print(json.dumps([said, env.to_env_vars(), sys.argv[1:], env.to_cmd_args()]))\n"
    )
    run = subprocess.run(
        [oracle_python, "-m", "hotfire.entrypoints.train", "train"],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(view),
            "SAGEMAKER_BASE_DIR": str(tmp_path),
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    variables, expected, arguments, expected_arguments = json.loads(run.stdout.splitlines()[-1])
    assert variables == expected
    assert arguments == expected_arguments == ["--lr", "0.1"]
