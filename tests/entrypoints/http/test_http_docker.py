"""TrainingImage as containers of a real engine, through the endpoint."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

pytestmark = [pytest.mark.docker, pytest.mark.slow]
ASKED = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.9.0-cpu-py311"
# The endpoint is at the address that clients in a container find in their environment as well.
SCRIPT = """
import json, os, urllib.request
host = os.environ["SM_CURRENT_HOST"]
print("in a container:", os.path.exists("/.dockerenv"), "of", os.environ["SM_HOSTS"], flush=True)
print("data:", open("/opt/ml/input/data/train/words").read(), flush=True)
request = urllib.request.Request(os.environ["AWS_ENDPOINT_URL"], b"{}", {
    "X-Amz-Target": "SageMaker.ListTrainingJobs",
    "Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/sagemaker/aws4_request"})
names = [one["TrainingJobName"] for one in json.load(urllib.request.urlopen(request))["TrainingJobSummaries"]]
print("listed:", os.environ["TRAINING_JOB_NAME"] in names, flush=True)
open(f"/opt/ml/model/{host}", "w").write("weights")
"""


@pytest.fixture(scope="session")
def docker_boto3(
    docker_engine: dict[str, str],
    docker_train: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """The image with boto3, which fetches the source from S3 as in the images of the service."""
    from hotfire.containers import images

    context = tmp_path_factory.mktemp("boto3-image")
    for name in ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six"):
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None
        found = Path(spec.origin)
        if found.name == "__init__.py":
            shutil.copytree(found.parent, context / "packages" / name)
        else:
            shutil.copy(found, context / "packages")
    (context / "Dockerfile").write_text(
        f"FROM {docker_train}\nCOPY packages /opt/packages\nENV PYTHONPATH=/opt/hotfire:/opt/packages\n"
    )
    docker, extra = images.buildkit(docker_engine)
    argv = [docker, "build", "-q", "-t", "hotfire-test/boto3:latest", str(context)]
    subprocess.run(argv, check=True, capture_output=True, env={**docker_engine, **extra})
    return "hotfire-test/boto3:latest"


def request(endpoint: Any, script: str, image: str, hosts: int = 1) -> dict[str, Any]:
    bucket = "sagemaker-us-east-1-123456789012"
    endpoint.client("s3").put_object(Bucket=bucket, Key="words/words", Body=b"ready steady go")
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"s3://{bucket}/words/"}}
    asked: dict[str, Any] = endpoint.request(
        script, InputDataConfig=[{"ChannelName": "train", "DataSource": source}]
    )
    asked["AlgorithmSpecification"]["TrainingImage"] = image
    asked["ResourceConfig"]["InstanceCount"] = hosts
    return asked


def test_a_rule_runs_a_local_image_in_the_place_of_the_one_asked_for(
    start_endpoint: Callable[..., Any],
    eventually: Callable[..., None],
    docker_engine: dict[str, str],
    docker_boto3: str,
    tmp_path: Any,
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        f"images:\n  '*/pytorch-training:*': {{backend: docker, image: {docker_boto3!r}}}\n"
    )
    where = {"DOCKER_HOST": docker_engine["DOCKER_HOST"]}
    endpoint = start_endpoint("--rules", str(rules), **where)
    sagemaker = endpoint.client("sagemaker")
    asked = request(endpoint, SCRIPT, ASKED, hosts=2)
    sagemaker.create_training_job(**asked)
    name = asked["TrainingJobName"]
    found = endpoint.ended(name)
    assert found["TrainingJobStatus"] == "Completed", found.get("FailureReason")
    assert found["AlgorithmSpecification"]["TrainingImage"] == ASKED
    for host in ("algo-1", "algo-2"):
        said = endpoint.messages(name, host)
        assert 'in a container: True of ["algo-1","algo-2"]' in said, said
        assert {"data: ready steady go", "listed: True"} <= set(said)
    first = endpoint.events(name)[0]["message"]
    assert f"the job runs in containers of {docker_boto3}" in first
    uri = found["ModelArtifacts"]["S3ModelArtifacts"]
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    assert endpoint.client("s3").head_object(Bucket=bucket, Key=key)["ContentLength"] > 0
    # Containers can be stopped.
    endless = request(endpoint, "print('up', flush=True)\nimport time\ntime.sleep(900)\n", ASKED)
    sagemaker.create_training_job(**endless)
    eventually(lambda: "up" in endpoint.messages(endless["TrainingJobName"]))
    sagemaker.stop_training_job(TrainingJobName=endless["TrainingJobName"])
    assert endpoint.ended(endless["TrainingJobName"])["TrainingJobStatus"] == "Stopped"


def test_the_image_that_was_asked_for_or_how_to_get_it(
    start_endpoint: Callable[..., Any], docker_engine: dict[str, str], docker_boto3: str
) -> None:
    where = {"DOCKER_HOST": docker_engine["DOCKER_HOST"]}
    endpoint = start_endpoint("--backend", "docker", **where)
    sagemaker = endpoint.client("sagemaker")
    asked = request(endpoint, "print('of its own')\n", docker_boto3)
    sagemaker.create_training_job(**asked)
    assert endpoint.ended(asked["TrainingJobName"])["TrainingJobStatus"] == "Completed"
    assert endpoint.messages(asked["TrainingJobName"]) == ["of its own"]
    with pytest.raises(ClientError, match="aws ecr get-login-password") as error:
        sagemaker.create_training_job(**request(endpoint, "", ASKED))
    assert error.value.response["Error"]["Code"] == "ValidationException"
