"""The clients that people have, unchanged, in environments and processes of their own: SDK 2, SDK 3, AWS CLI 1.

Their environments are made once below ~/.cache/hotfire-tests (0.7 GB, from the package index).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "endpoint"
SDK_2, SDK_3, CLI_1 = "sagemaker==2.257.*", "sagemaker==3.27.*", "awscli==1.46.*"

pytestmark = [pytest.mark.slow, pytest.mark.extended]
Client = Callable[[str], Path]


@pytest.fixture(scope="session")
def client() -> Client:
    """The ``bin`` of an environment with one client."""

    def make(requirement: str) -> Path:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        name = requirement.replace("==", "-").replace(".*", "")
        home = Path.home() / ".cache" / "hotfire-tests" / f"{name}-py{version}"
        if not (home / "complete").exists():
            shutil.rmtree(home, ignore_errors=True)
            _install(home, requirement)
            (home / "complete").touch()
        return home / "bin"

    return make


def _install(home: Path, requirement: str) -> None:
    uv = [sys.executable, "-m", "uv"] if shutil.which("uv") is None else ["uv"]
    for command in (
        [*uv, "venv", "--quiet", "--python", sys.executable, str(home)],
        [*uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), requirement],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(home, ignore_errors=True)
            reached = "error sending request" not in done.stderr and "connect" not in done.stderr
            assert reached is False, done.stderr
            pytest.skip(
                f"the package index cannot be reached for {requirement}: {done.stderr[-300:]}"
            )


def as_client(endpoint: Any, *command: str | Path) -> str:
    """The output of a command under ``hotfire exec``; the home directory is an empty one."""
    home = endpoint.home / "nobody"
    home.mkdir(exist_ok=True)
    environ = {**endpoint.environ, "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-m", "hotfire.entrypoints", "exec", "--", *map(str, command)],
        env=environ,
        cwd=home,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout
    return done.stdout


def test_sdk_2(endpoint: Any, client: Client) -> None:
    said = as_client(endpoint, client(SDK_2) / "python", EXAMPLES / "sdk_v2.py")
    assert "role: arn:aws:iam::123456789012:role/hotfire" in said
    assert "hello from v2: 3 lines in /opt/ml/input/data/train" in said
    assert said.count("epoch=1; loss=0.5000;") == 1
    assert "Completed - Training job completed" in said
    assert "Training seconds: " in said
    assert "weights: 13" in said


def test_sdk_2_tunes(endpoint: Any, client: Client) -> None:
    said = as_client(endpoint, client(SDK_2) / "python", EXAMPLES / "sdk_v2_tuner.py")
    assert "best: example-" in said
    assert "output/model.tar.gz" in said


MORE = """
import sys
import sagemaker
from sagemaker.huggingface import HuggingFace
from sagemaker.exceptions import UnexpectedStatusException

bucket = sagemaker.Session().default_bucket()

def estimator(name, **more):
    return HuggingFace(
        entry_point="script.py", source_dir=sys.argv[1], role=sagemaker.get_execution_role(),
        transformers_version="4.28", pytorch_version="2.0", py_version="py310",
        instance_type="ml.g4dn.xlarge", instance_count=1, base_job_name=name, **more)

spot = estimator(
    "spot", use_spot_instances=True, max_run=300, max_wait=600,
    checkpoint_s3_uri=f"s3://{bucket}/checkpoints", hyperparameters={"how": "well"},
    metric_definitions=[{"Name": "loss", "Regex": "loss=([0-9.]+);"}])
spot.fit()
print("objects:", sagemaker.s3.S3Downloader.list(f"s3://{bucket}/checkpoints"))
failing = estimator("failing", hyperparameters={"how": "badly"})
try:
    failing.fit(logs=False)
except UnexpectedStatusException as error:
    print("raised:", error.actual_status, str(error).replace(chr(10), " "))
endless = estimator("endless", hyperparameters={"how": "for ever"})
endless.fit(wait=False)
endless.latest_training_job.stop()
endless.latest_training_job.wait(logs=False)
print("stopped:", endless.latest_training_job.describe()["TrainingJobStatus"])
"""
SCRIPT = """
import os, sys, time
how = sys.argv[sys.argv.index("--how") + 1]
print("loss=0.25;", flush=True)
if how == "badly":
    raise ValueError("the data is not what it was")
if how == "for ever":
    time.sleep(1000)
os.makedirs("/opt/ml/checkpoints", exist_ok=True)
open("/opt/ml/checkpoints/step-1", "w").write("1")
"""


def test_sdk_2_with_spot_failure_and_stop(endpoint: Any, client: Client, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "script.py").write_text(SCRIPT)
    (tmp_path / "more.py").write_text(MORE)
    said = as_client(endpoint, client(SDK_2) / "python", tmp_path / "more.py", source)
    assert "(PyTorch 2.0, Transformers 4.28, GPU, Python 3.10) is not pulled" in said
    assert "Managed Spot Training savings: " in said
    assert "checkpoints/step-1" in said
    assert "raised: Failed" in said
    assert "the data is not what it was" in said
    assert "stopped: Stopped" in said


TRAINIUM = """
import sys
import sagemaker
from sagemaker.pytorch import PyTorch

estimator = PyTorch(
    entry_point="script.py", source_dir=sys.argv[1], role=sagemaker.get_execution_role(),
    image_uri="763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training-neuronx:2.9.0-neuronx-py311-sdk2.27.0",
    instance_type="ml.trn1.2xlarge", instance_count=1, base_job_name="trainium",
    distribution={"torch_distributed": {"enabled": True}}, hyperparameters={"lr": 0.1})
estimator.fit()
"""


@pytest.mark.xla
def test_sdk_2_trains_on_emulated_trainium(endpoint: Any, client: Client, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "script.py").write_text(
        "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"
    )
    (tmp_path / "trainium.py").write_text(TRAINIUM)
    said = as_client(endpoint, client(SDK_2) / "python", tmp_path / "trainium.py", source)
    assert "(PyTorch 2.9.0, Neuron, Python 3.11) is not pulled" in said
    assert "rank 0 of 2" in said
    assert "rank 1 of 2" in said


def test_sdk_3(endpoint: Any, client: Client) -> None:
    said = as_client(endpoint, client(SDK_3) / "python", EXAMPLES / "sdk_v3.py")
    assert "role: arn:aws:iam::123456789012:role/hotfire" in said
    assert "hello from v3: 3 lines in /opt/ml/input/data/train" in said
    assert "epoch=1; loss=0.5000;" in said
    assert "status: Completed" in said


def test_sdk_3_tunes(endpoint: Any, client: Client) -> None:
    said = as_client(endpoint, client(SDK_3) / "python", EXAMPLES / "sdk_v3_tuner.py")
    assert "status: Completed best: example-v3-" in said


def test_aws_cli(endpoint: Any, client: Client, tmp_path: Path) -> None:
    aws = client(CLI_1) / "aws"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "large").write_bytes(os.urandom(20 << 20))
    (tmp_path / "data" / "small").write_text("x")
    as_client(endpoint, aws, "s3", "mb", "s3://cli-bucket")
    as_client(endpoint, aws, "s3", "sync", tmp_path / "data", "s3://cli-bucket/in/")
    listed = as_client(endpoint, aws, "s3", "ls", "--recursive", "s3://cli-bucket")
    assert "in/large" in listed
    as_client(endpoint, aws, "s3", "cp", "s3://cli-bucket/in/large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "data" / "large").read_bytes()
    asked = endpoint.request("")
    del asked["HyperParameters"]
    asked |= {
        "TrainingJobName": f"cli-{os.getpid()}",
        "OutputDataConfig": {"S3OutputPath": "s3://cli-bucket/out"},
        "InputDataConfig": [
            {
                "ChannelName": "train",
                "DataSource": {
                    "S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://cli-bucket/in/"}
                },
            }
        ],
    }
    asked["AlgorithmSpecification"] |= {
        "ContainerEntrypoint": ["/bin/sh", "-c"],
        "ContainerArguments": ["ls /opt/ml/input/data/train"],
    }
    (tmp_path / "job.json").write_text(json.dumps(asked))
    create = ("sagemaker", "create-training-job", "--cli-input-json", f"file://{tmp_path}/job.json")
    created = json.loads(as_client(endpoint, aws, *create))
    name = asked["TrainingJobName"]
    assert created["TrainingJobArn"].endswith(f":training-job/{name}")
    endpoint.ended(name)
    wait = ("sagemaker", "wait", "training-job-completed-or-stopped", "--training-job-name", name)
    as_client(endpoint, aws, *wait)
    filtered = ("logs", "filter-log-events", "--log-group-name", "/aws/sagemaker/TrainingJobs")
    events = json.loads(as_client(endpoint, aws, *filtered, "--log-stream-name-prefix", f"{name}/"))
    assert [event["message"] for event in events["events"]][-2:] == ["large", "small"]
    listed = as_client(endpoint, aws, "sagemaker", "list-training-jobs", "--name-contains", name)
    assert json.loads(listed)["TrainingJobSummaries"][0]["TrainingJobStatus"] == "Completed"
