"""`hotfire run --backend docker` of a trivial script minus `docker run --rm IMAGE true`; 8 hosts against 8 `docker run`.

Side by side, alternating, medians. Limits: 0.9 s more, and 1.3 times. Needs an engine (make engine).
With --sdk-python, a Python that has sagemaker 2 (`pip install 'sagemaker[local]<3'`; docker-compose on PATH), the same
job in the SDK's local mode. Sizes of hotfire's images, where they have been built.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BASE = "hotfire-test/base:bookworm"
HOSTS = 8
SDK_IMAGE = "hotfire-test/sdk-local:latest"
SDK_JOB = """
import sys
from sagemaker.estimator import Estimator
from sagemaker.local import LocalSession
session = LocalSession()
session.config = {"local": {"local_code": True}}
Estimator(image_uri=sys.argv[1], role="arn:aws:iam::000000000000:role/bench", instance_count=1, instance_type="local",
    output_path=f"file://{sys.argv[2]}", sagemaker_session=session).fit()
"""
SDK_CONFIG = "SchemaVersion: '1.0'\nSageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}\n"


def docker_command() -> str:
    return "/usr/bin/docker" if Path("/usr/bin/docker").exists() else str(shutil.which("docker"))


def seconds(argv: list[str], cwd: Path, env: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(argv, cwd=cwd, env=env, check=True, capture_output=True)
    return time.perf_counter() - start


def all_at_once(argv: list[str], count: int) -> float:
    start = time.perf_counter()
    running = [subprocess.Popen(argv, stdout=subprocess.DEVNULL) for _ in range(count)]
    if any(process.wait() for process in running):
        raise RuntimeError("docker run failed")
    return time.perf_counter() - start


def request(folder: Path, name: str, hosts: int) -> Path:
    """A job whose containers run ``true``, as the other side does."""
    path = folder / f"{name}.json"
    document = {
        "TrainingJobName": name,
        "RoleArn": "arn:aws:iam::000000000000:role/bench",
        "AlgorithmSpecification": {
            "TrainingImage": BASE,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["true"],
        },
        "OutputDataConfig": {"S3OutputPath": f"file://{folder}/out"},
        "ResourceConfig": {"InstanceType": "local", "InstanceCount": hosts, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def sdk_job(python: str, folder: Path) -> list[str]:
    """The command that runs a container in the SDK's local mode; its image does nothing when asked to train."""
    text = f"FROM {BASE}\nRUN ln -s /bin/true /usr/local/bin/train\n"
    argv = [docker_command(), "build", "-q", "-t", SDK_IMAGE, "-"]
    env = {**os.environ, "DOCKER_BUILDKIT": "0"}
    subprocess.run(argv, input=text.encode(), check=True, capture_output=True, env=env)
    (folder / "sdk.yaml").write_text(SDK_CONFIG, encoding="utf-8")
    return [python, "-W", "ignore", "-c", SDK_JOB, SDK_IMAGE, str(folder / "sdk-out")]


SDK_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def measure(rounds: int, sdk_python: str = "") -> dict[str, object]:
    docker = docker_command()
    bare = [docker, "run", "--rm", BASE, "true"]
    hotfire = [sys.executable, "-m", "hotfire.entrypoints", "run"]
    taken: dict[str, list[float]] = {
        "docker_run": [],
        "hotfire": [],
        "docker_8": [],
        "hotfire_8": [],
        **({"sdk_local": []} if sdk_python else {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        env = {**os.environ, "HOTFIRE_HOME": str(cwd / "home"), "HOTFIRE_CACHE": str(cwd / "cache")}
        sdk = sdk_job(sdk_python, cwd) if sdk_python else []
        sdk_env = {**env, **SDK_ENVIRONMENT, "SAGEMAKER_USER_CONFIG_OVERRIDE": f"{cwd}/sdk.yaml"}
        for number in range(rounds + 1):  # the first fills caches
            one = request(cwd, f"one-{number}", 1)
            many = request(cwd, f"many-{number}", HOSTS)
            found = {
                "docker_run": seconds(bare, cwd, env),
                "hotfire": seconds([*hotfire, str(one), "--backend", "docker"], cwd, env),
                "docker_8": all_at_once(bare, HOSTS),
                "hotfire_8": seconds([*hotfire, str(many), "--backend", "docker"], cwd, env),
            }
            if sdk:
                found["sdk_local"] = seconds(sdk, cwd, sdk_env)
            if number:
                for name, value in found.items():
                    taken[name].append(value)
    median = {name: statistics.median(values) for name, values in taken.items()}
    return {
        **{f"{name}_seconds": round(value, 3) for name, value in median.items()},
        "more_seconds": round(median["hotfire"] - median["docker_run"], 3),
        "eight_hosts_times": round(median["hotfire_8"] / median["docker_8"], 3),
        "image_megabytes": sizes(docker),
    }


def sizes(docker: str) -> dict[str, int]:
    found = {}
    for name in ("hotfire-gpu", "hotfire-gpu:inductor", "hotfire-neuron"):
        argv = [docker, "image", "inspect", "-f", "{{.Size}}", name]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found[name] = int(done.stdout) // 10**6
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sdk-python", default="")
    given = parser.parse_args()
    print(json.dumps(measure(given.rounds, given.sdk_python)))
