"""The endpoint: from CreateTrainingJob to the script's first line against `hotfire run`; Describe; List over 5,000 jobs.

The script prints the time of its first line, so nothing is polled. The server has one core for Describe.
Limits: 0.15 s more; 1,000 calls a second; 100 ms.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HOTFIRE = [sys.executable, "-m", "hotfire.entrypoints"]
SCRIPT = "import time\nprint('now', repr(time.time()), flush=True)\n"
SCOPE = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/sagemaker/aws4_request"


class Client:
    """A connection that is kept, without the cost of an SDK."""

    def __init__(self, port: int) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", port)

    def __call__(self, operation: str, **members: Any) -> Any:
        headers = {"Authorization": SCOPE, "X-Amz-Target": f"SageMaker.{operation}"}
        self._link.request("POST", "/", json.dumps(members).encode(), headers)
        answer = self._link.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return json.loads(body or b"{}")


def request(folder: Path, name: str) -> dict[str, Any]:
    return {
        "TrainingJobName": name,
        "RoleArn": "arn:aws:iam::123456789012:role/hotfire",
        "AlgorithmSpecification": {"TrainingImage": "bench", "TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": f"file://{folder}/out"},
        "ResourceConfig": {"InstanceType": "local", "InstanceCount": 1, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        "HyperParameters": {
            "sagemaker_program": '"train.py"',
            "sagemaker_submit_directory": json.dumps(f"file://{folder}/source"),
        },
    }


def first_line(home: Path, name: str) -> float:
    """When the script of a job ran, in seconds since the epoch; waits for it."""
    log = home / "jobs" / name / "attempts" / "1" / "algo-1" / "log"
    while True:
        found = re.search(r"^now ([0-9.]+)$", log.read_text() if log.exists() else "", re.MULTILINE)
        if found:
            return float(found[1])
        time.sleep(0.01)


def starts(folder: Path, env: dict[str, str], ask: Client, rounds: int) -> dict[str, float]:
    home = Path(env["HOTFIRE_HOME"])
    taken: dict[str, list[float]] = {"run": [], "http": []}
    for number in range(-1, rounds):
        asked = request(folder, f"run-{number + 1}")
        document = folder / "job.json"
        document.write_text(json.dumps(asked))
        began = time.time()
        subprocess.run(
            [*HOTFIRE, "run", str(document), "-q"], env=env, check=True, capture_output=True
        )
        run = first_line(home, asked["TrainingJobName"]) - began
        asked = request(folder, f"http-{number + 1}")
        began = time.time()
        ask("CreateTrainingJob", **asked)
        over_http = first_line(home, asked["TrainingJobName"]) - began
        status = "InProgress"
        while status == "InProgress":
            time.sleep(0.05)
            found = ask("DescribeTrainingJob", TrainingJobName=asked["TrainingJobName"])
            status = found["TrainingJobStatus"]
        assert status == "Completed", found
        if number >= 0:  # the first round fills caches
            taken["run"].append(run)
            taken["http"].append(over_http)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    return {
        "run_to_first_line_seconds": round(medians["run"], 3),
        "create_to_first_line_seconds": round(medians["http"], 3),
        "create_more_seconds": round(medians["http"] - medians["run"], 3),
    }


def describes(ask: Client, seconds: float) -> dict[str, float]:
    ask("DescribeTrainingJob", TrainingJobName="http-0")
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        ask("DescribeTrainingJob", TrainingJobName="http-0")
        count += 1
    return {"describe_per_second": round(count / (time.perf_counter() - began))}


def lists(home: Path, ask: Client, jobs: int) -> dict[str, float]:
    source = home / "jobs" / "http-0"
    for number in range(jobs - len(list(source.parent.iterdir()))):
        target = source.parent / f"copy-{number}"
        target.mkdir()
        for name in ("request.json", "options.json", "record.json"):
            text = (source / name).read_text().replace('"http-0"', f'"copy-{number}"')
            (target / name).write_text(text)
    began = time.perf_counter()
    ask("ListTrainingJobs", MaxResults=100)
    cold = time.perf_counter() - began
    taken = []
    for _ in range(10):
        began = time.perf_counter()
        ask("ListTrainingJobs", MaxResults=100, StatusEquals="Completed", SortBy="Name")
        taken.append(time.perf_counter() - began)
    return {
        "list_5000_seconds": round(statistics.median(taken), 4),
        "list_5000_cold_seconds": round(cold, 4),
    }


def measure(rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "source").mkdir()
        (folder / "source" / "train.py").write_text(SCRIPT)
        env = {**os.environ, "HOTFIRE_HOME": f"{name}/home", "HOTFIRE_CACHE": f"{name}/cache"}
        env |= {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
        server = subprocess.Popen(
            [*HOTFIRE, "serve", "--port", "0"], env=env, stderr=subprocess.PIPE, text=True
        )
        assert server.stderr is not None
        try:
            found = None
            while found is None:
                found = re.search(r"http://127\.0\.0\.1:(\d+)", server.stderr.readline())
            ask = Client(int(found[1]))
            figures = starts(folder, env, ask, rounds)
            cores = sorted(os.sched_getaffinity(0))
            for task in Path(f"/proc/{server.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), cores[-1:])
            os.sched_setaffinity(0, cores[:1])
            figures |= describes(ask, 3)
            figures |= lists(folder / "home", ask, 5000)
        finally:
            server.terminate()
            server.wait()
            server.stderr.close()
        shutil.rmtree(folder / "home")
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    print(json.dumps(measure(parser.parse_args().rounds)))
