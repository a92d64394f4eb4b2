"""A running ``hotfire serve``, and real clients for it."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROLE = "arn:aws:iam::123456789012:role/hotfire"
BUCKET = "sagemaker-us-east-1-123456789012"
_NUMBERS = itertools.count(1)


@dataclass
class Endpoint:
    """One server process. ``home`` is its HOTFIRE_HOME."""

    home: Path
    words: tuple[str, ...] = ()
    more: dict[str, str] = field(default_factory=dict)
    url: str = ""
    process: subprocess.Popen[bytes] | None = None
    environ: dict[str, str] = field(default_factory=dict)
    clients: dict[str, Any] = field(default_factory=dict)

    def start(self, port: int = 0) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        gone = ("AWS_", "SAGEMAKER_")
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(gone)} | {
            "HOTFIRE_HOME": str(self.home / "home"),
            "HOTFIRE_CACHE": str(self.home / "cache"),
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "PYTHONPATH": os.pathsep.join([*sys.path[:1], os.environ.get("PYTHONPATH", "")]),
            **self.more,
        }
        log = self.home / "serve.log"
        with log.open("wb") as out:
            command = [sys.executable, "-m", "hotfire.entrypoints", "serve", "--port", str(port)]
            self.process = subprocess.Popen(
                [*command, *self.words], stderr=out, env=self.environ, cwd=self.home
            )
        found = None
        while found is None:
            assert self.process.poll() is None, log.read_text()
            found = re.search(r"the endpoint is (\S+)", log.read_text())
            time.sleep(0.05)
        self.url = found[1]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        while self.clients:
            self.clients.popitem()[1].close()
        self.process.send_signal(number)
        return self.process.wait(30)

    def hotfire(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """The command line against the same store."""
        command = [sys.executable, "-m", "hotfire.entrypoints", *words]
        return subprocess.run(
            command,
            env=self.environ,
            cwd=self.home,
            text=True,
            capture_output=True,
            check=False,
            **more,
        )

    def client(self, service: str, **more: Any) -> Any:
        """One per service and settings, because each has error classes and connections of its own."""
        import boto3
        from botocore.config import Config

        key = f"{service} {self.url} {more}"
        if key not in self.clients:
            self.clients[key] = boto3.Session().client(
                service,
                endpoint_url=self.url,
                region_name="us-east-1",
                aws_access_key_id="any",
                aws_secret_access_key="any",
                config=Config(retries={"total_max_attempts": 1}, **more),
            )
        return self.clients[key]

    def request(self, script: str, **members: Any) -> dict[str, Any]:
        """A job that runs ``script``, whose source is in the endpoint's own S3."""
        name = f"job-{os.getpid()}-{next(_NUMBERS)}"
        held = io.BytesIO()
        with tarfile.open(fileobj=held, mode="w:gz") as archive:
            info = tarfile.TarInfo("train.py")
            info.size = len(script.encode())
            archive.addfile(info, io.BytesIO(script.encode()))
        key = f"{name}/source/sourcedir.tar.gz"
        self.client("s3").put_object(Bucket=BUCKET, Key=key, Body=held.getvalue())
        return {
            "TrainingJobName": name,
            "RoleArn": ROLE,
            "AlgorithmSpecification": {
                "TrainingImage": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.9.0-cpu-py311",
                "TrainingInputMode": "File",
            },
            "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/out/"},
            "ResourceConfig": {
                "InstanceType": "ml.m5.large",
                "InstanceCount": 1,
                "VolumeSizeInGB": 1,
            },
            "StoppingCondition": {"MaxRuntimeInSeconds": 300},
            "HyperParameters": {
                "sagemaker_program": '"train.py"',
                "sagemaker_submit_directory": json.dumps(f"s3://{BUCKET}/{key}"),
            },
            **members,
        }

    def create(self, script: str, **members: Any) -> str:
        asked = self.request(script, **members)
        self.client("sagemaker").create_training_job(**asked)
        return str(asked["TrainingJobName"])

    def ended(self, name: str) -> dict[str, Any]:
        """DescribeTrainingJob's answer once the job is terminal, through botocore's own waiter."""
        from botocore.exceptions import WaiterError

        sagemaker = self.client("sagemaker")
        waiter = sagemaker.get_waiter("training_job_completed_or_stopped")
        try:
            waiter.wait(TrainingJobName=name, WaiterConfig={"Delay": 0.2, "MaxAttempts": 450})
        except WaiterError:
            assert sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobStatus"] == (
                "Failed"
            )
        return dict(sagemaker.describe_training_job(TrainingJobName=name))

    def events(self, name: str, host: str = "algo-1") -> list[dict[str, Any]]:
        """All events of a host's stream, page by page."""
        logs = self.client("logs")
        group = "/aws/sagemaker/TrainingJobs"
        streams = logs.describe_log_streams(
            logGroupName=group, logStreamNamePrefix=f"{name}/{host}-"
        )
        (stream,) = streams["logStreams"]
        found: list[dict[str, Any]] = []
        token: dict[str, str] = {}
        while True:
            page = logs.get_log_events(
                logGroupName=group,
                logStreamName=stream["logStreamName"],
                startFromHead=True,
                **token,
            )
            if not page["events"]:
                return found
            found += page["events"]
            token = {"nextToken": page["nextForwardToken"]}

    def messages(self, name: str, host: str = "algo-1") -> list[str]:
        """What the job itself printed."""
        lines = [event["message"] for event in self.events(name, host)]
        return [line for line in lines if not line.startswith("hotfire:")]


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """One server for all tests that do not change how it runs."""
    found = Endpoint(tmp_path_factory.mktemp("endpoint"), ("--max-jobs", "4"))
    found.start()
    yield found
    assert found.end() == 0
    # Nobody failed behind the tests' back.
    assert "Traceback" not in (found.home / "serve.log").read_text()


@pytest.fixture
def start_endpoint(tmp_path: Path) -> Iterator[Callable[..., Endpoint]]:
    """Servers of one test."""
    started: list[Endpoint] = []

    def start(*words: str, **more: str) -> Endpoint:
        found = Endpoint(tmp_path / f"endpoint-{len(started)}", words, more)
        found.start()
        started.append(found)
        return found

    yield start
    for one in started:
        if one.process is not None and one.process.poll() is None:
            one.end()


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Wait until something is true; fail after two minutes."""

    def wait(condition: Callable[[], object]) -> None:
        end = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.1)

    return wait
