"""Hyperparameter tuning jobs through boto3: training jobs really run, and a killed server goes on."""

from __future__ import annotations

import copy
import http.client
import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

_NUMBERS = itertools.count(1)
SCRIPT = """
import json, sys
asked = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert asked["--fixed"] == "kept", asked
assert "--_tuning_objective_metric" not in asked, asked
config = json.load(open("/opt/ml/input/config/hyperparameters.json"))
assert config["_tuning_objective_metric"] == "loss", config
for epoch in range(3):
    print(f"loss={float(asked['--rate']) ** 2 + 1 / (epoch + 1)};", flush=True)
"""
# The second goes on when the server has been started again; one that is worse waits for somebody to stop it.
CURVES = """
import os, sys, time
asked = dict(zip(sys.argv[1::2], sys.argv[2::2]))
level = float(asked["--level"])
print(f"loss={level};", flush=True)
print(f"loss={level};", flush=True)
while level == 2 and not os.path.exists(asked["--flag"]):
    time.sleep(0.1)
if level > 5:
    time.sleep(1000)
"""
NUMBERS = {"ContinuousParameterRanges": [{"Name": "rate", "MinValue": "-4", "MaxValue": "4"}]}


def request(
    endpoint: Any, script: str, space: dict[str, Any], limits: dict[str, int], **config: Any
) -> dict[str, Any]:
    job = endpoint.request(script)
    job["AlgorithmSpecification"]["MetricDefinitions"] = [
        {"Name": "loss", "Regex": "loss=([0-9.]+);"}
    ]
    definition = {key: job[key] for key in job if key not in ("TrainingJobName", "HyperParameters")}
    definition["StaticHyperParameters"] = {**job["HyperParameters"], "fixed": '"kept"'}
    return {
        "HyperParameterTuningJobName": f"tune-{os.getpid()}-{next(_NUMBERS)}",
        "HyperParameterTuningJobConfig": {
            "Strategy": "Random",
            "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
            "ResourceLimits": limits,
            "ParameterRanges": space,
            **config,
        },
        "TrainingJobDefinition": definition,
    }


def described(endpoint: Any, name: str) -> dict[str, Any]:
    sagemaker = endpoint.client("sagemaker")
    return dict(sagemaker.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=name))


def jobs_of(endpoint: Any, name: str, **asked: Any) -> list[dict[str, Any]]:
    pages = endpoint.client("sagemaker").get_paginator(
        "list_training_jobs_for_hyper_parameter_tuning_job"
    )
    found = pages.paginate(
        HyperParameterTuningJobName=name, PaginationConfig={"PageSize": 2}, **asked
    )
    return [one for page in found for one in page["TrainingJobSummaries"]]


def refusal(endpoint: Any, asked: dict[str, Any]) -> str:
    with pytest.raises(ClientError) as error:
        endpoint.client("sagemaker").create_hyper_parameter_tuning_job(**asked)
    response = error.value.response
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert response["Error"]["Code"] == "ValidationException"
    return str(response["Error"]["Message"])


def test_a_tuning_job_from_creation_to_the_best(
    endpoint: Any, eventually: Callable[..., None]
) -> None:
    sagemaker = endpoint.client("sagemaker")
    limits = {"MaxNumberOfTrainingJobs": 7, "MaxParallelTrainingJobs": 2}
    asked = request(endpoint, SCRIPT, NUMBERS, limits, Strategy="Bayesian", RandomSeed=3)
    asked["Tags"] = [{"Key": "team", "Value": "red"}]
    name = asked["HyperParameterTuningJobName"]
    arn = sagemaker.create_hyper_parameter_tuning_job(**asked)["HyperParameterTuningJobArn"]
    assert arn.endswith(f":hyper-parameter-tuning-job/{name}")
    with pytest.raises(sagemaker.exceptions.ResourceInUse):
        sagemaker.create_hyper_parameter_tuning_job(**asked)
    most = 0

    def over() -> bool:
        nonlocal most
        found = described(endpoint, name)
        most = max(most, found["TrainingJobStatusCounters"]["InProgress"])
        return bool(found["HyperParameterTuningJobStatus"] != "InProgress")

    eventually(over)
    found = described(endpoint, name)
    assert found["HyperParameterTuningJobStatus"] == "Completed", found.get("FailureReason")
    assert most <= 2
    assert found["TrainingJobStatusCounters"]["Completed"] == 7
    assert found["ObjectiveStatusCounters"] == {"Succeeded": 7, "Pending": 0, "Failed": 0}
    assert found["HyperParameterTuningJobConfig"] == asked["HyperParameterTuningJobConfig"]
    assert found["HyperParameterTuningEndTime"] >= found["CreationTime"]
    rows = jobs_of(endpoint, name, SortBy="FinalObjectiveMetricValue")
    values = [one["FinalHyperParameterTuningJobObjectiveMetric"]["Value"] for one in rows]
    assert values == sorted(values)
    for row, value in zip(rows, values, strict=True):
        assert value == pytest.approx(float(row["TunedHyperParameters"]["rate"]) ** 2 + 1 / 3, 1e-3)
    assert found["BestTrainingJob"] == rows[0]
    names = [one["TrainingJobName"] for one in jobs_of(endpoint, name)]
    assert [one.rpartition("-")[0] for one in names] == [f"{name}-00{n}" for n in range(1, 8)]
    job = sagemaker.describe_training_job(TrainingJobName=names[0])
    assert job["TuningJobArn"] == arn
    assert job["TrainingJobArn"] in [one["TrainingJobArn"] for one in rows]
    for resource in (arn, job["TrainingJobArn"]):
        assert sagemaker.list_tags(ResourceArn=resource)["Tags"] == asked["Tags"]
    listed = sagemaker.list_hyper_parameter_tuning_jobs(NameContains=name, StatusEquals="Completed")
    (row,) = listed["HyperParameterTuningJobSummaries"]
    assert (row["Strategy"], row["ResourceLimits"]) == ("Bayesian", limits)
    with pytest.raises(ClientError, match="in status Completed"):
        sagemaker.stop_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)
    sagemaker.delete_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)
    with pytest.raises(sagemaker.exceptions.ResourceNotFound):
        described(endpoint, name)
    assert sagemaker.describe_training_job(TrainingJobName=names[0])


def test_a_killed_server_goes_on_and_early_stopping(
    start_endpoint: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    """The grid is tried in order: three that end by themselves, one that is worse and does not."""
    endpoint = start_endpoint("--max-jobs", "1", "--persist", "kept")
    space = {"CategoricalParameterRanges": [{"Name": "level", "Values": ["1", "2", "3", "9"]}]}
    asked = request(
        endpoint,
        CURVES,
        space,
        {"MaxParallelTrainingJobs": 1},
        Strategy="Grid",
        TrainingJobEarlyStoppingType="Auto",
    )
    flag = endpoint.home / "again"
    asked["TrainingJobDefinition"]["StaticHyperParameters"]["flag"] = str(flag)
    name = asked["HyperParameterTuningJobName"]
    endpoint.client("sagemaker").create_hyper_parameter_tuning_job(**asked)
    eventually(lambda: len(jobs_of(endpoint, name)) == 2)
    second = jobs_of(endpoint, name)[1]["TrainingJobName"]
    eventually(lambda: "loss=2.0;" in endpoint.messages(second))
    port = endpoint.port
    endpoint.end(signal.SIGKILL)
    endpoint.start(port)
    flag.touch()
    status = "HyperParameterTuningJobStatus"
    eventually(lambda: described(endpoint, name)[status] != "InProgress")
    assert described(endpoint, name)[status] == "Completed"
    rows = jobs_of(endpoint, name)
    assert [one["TunedHyperParameters"]["level"] for one in rows] == ["1", "2", "3", "9"]
    assert [one["TrainingJobStatus"] for one in rows] == ["Completed"] * 3 + ["Stopped"]
    assert described(endpoint, name)["BestTrainingJob"]["TunedHyperParameters"] == {"level": "1"}


def test_stopping_and_failing(endpoint: Any, eventually: Callable[..., None]) -> None:
    sagemaker = endpoint.client("sagemaker")
    limits = {"MaxNumberOfTrainingJobs": 3, "MaxParallelTrainingJobs": 2}
    endless = request(endpoint, "import time\ntime.sleep(1000)\n", NUMBERS, limits)
    stopped = endless["HyperParameterTuningJobName"]
    sagemaker.create_hyper_parameter_tuning_job(**endless)
    eventually(lambda: len(jobs_of(endpoint, stopped)) == 2)
    sagemaker.stop_hyper_parameter_tuning_job(HyperParameterTuningJobName=stopped)
    silent = request(endpoint, "print('nothing of interest')\n", NUMBERS, limits)
    failed = silent["HyperParameterTuningJobName"]
    sagemaker.create_hyper_parameter_tuning_job(**silent)
    eventually(lambda: "HyperParameterTuningEndTime" in described(endpoint, stopped))
    assert described(endpoint, stopped)["HyperParameterTuningJobStatus"] == "Stopped"
    assert {one["TrainingJobStatus"] for one in jobs_of(endpoint, stopped)} == {"Stopped"}
    eventually(lambda: "HyperParameterTuningEndTime" in described(endpoint, failed))
    found = described(endpoint, failed)
    assert found["HyperParameterTuningJobStatus"] == "Failed"
    assert "No objective metrics found after running 3" in found["FailureReason"]
    assert found["ObjectiveStatusCounters"]["Failed"] == 3
    assert "BestTrainingJob" not in found


def test_what_is_not_carried_out_is_refused_by_name(endpoint: Any) -> None:
    limits = {"MaxNumberOfTrainingJobs": 2, "MaxParallelTrainingJobs": 1}
    good = request(endpoint, SCRIPT, NUMBERS, limits)
    parent = {"ParentHyperParameterTuningJobs": [{"HyperParameterTuningJobName": "p"}]}
    warm = {"WarmStartConfig": {**parent, "WarmStartType": "TransferLearning"}}
    assert "warm start" in refusal(endpoint, good | warm)
    assert "Autotune" in refusal(endpoint, good | {"Autotune": {"Mode": "Enabled"}})
    config = good["HyperParameterTuningJobConfig"]

    def with_config(**members: Any) -> dict[str, Any]:
        return good | {"HyperParameterTuningJobConfig": {**config, **members}}

    assert "Hyperband" in refusal(endpoint, with_config(Strategy="Hyperband"))
    auto = {**NUMBERS, "AutoParameters": [{"Name": "y", "ValueHint": "1"}]}
    assert "AutoParameters" in refusal(endpoint, with_config(ParameterRanges=auto))
    other = {"Type": "Minimize", "MetricName": "accuracy"}
    assert "accuracy is not in MetricDefinitions" in refusal(
        endpoint, with_config(HyperParameterTuningJobObjective=other)
    )
    assert "categorical" in refusal(endpoint, with_config(Strategy="Grid"))
    two = [{**good["TrainingJobDefinition"], "DefinitionName": name} for name in ("one", "two")]
    several = {key: value for key, value in good.items() if key != "TrainingJobDefinition"}
    assert "more than one" in refusal(endpoint, several | {"TrainingJobDefinitions": two})
    # What is wrong with the training jobs comes out at once as well.
    broken = {**good["TrainingJobDefinition"], "ResourceConfig": {"InstanceType": "ml.m5.large"}}
    assert "instanceCount" in refusal(endpoint, good | {"TrainingJobDefinition": broken})
    assert (
        endpoint.client("sagemaker").list_hyper_parameter_tuning_jobs(
            NameContains=good["HyperParameterTuningJobName"]
        )["HyperParameterTuningJobSummaries"]
        == []
    )


_WEIRD = (None, True, -1, 10**400, 1e308, "", "x" * 300, "../..", [], {}, [None], {"a": 1})


def _paths(value: Any) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (key,)
        if isinstance(inner, dict | list):
            yield from ((key, *rest) for rest in _paths(inner))


def test_whatever_is_wrong_with_a_request_it_is_refused(endpoint: Any) -> None:
    """Each member in turn replaced by what it cannot be, or by what means nothing there."""
    criteria = {
        "TargetObjectiveMetricValue": 0.5,
        "BestObjectiveNotImproving": {"MaxNumberOfTrainingJobsNotImproving": 3},
        "ConvergenceDetected": {"CompleteOnConvergence": "Disabled"},
    }
    limits = {"MaxNumberOfTrainingJobs": 2, "MaxParallelTrainingJobs": 1}
    good = request(endpoint, SCRIPT, NUMBERS, limits, TuningJobCompletionCriteria=criteria)
    # Nothing runs whatever is let through.
    del good["TrainingJobDefinition"]["ResourceConfig"]["InstanceCount"]
    link = http.client.HTTPConnection("127.0.0.1", endpoint.port)
    scope = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/sagemaker/aws4_request"
    target = "SageMaker.CreateHyperParameterTuningJob"
    for path, weird in itertools.product(_paths(good), _WEIRD):
        changed = copy.deepcopy(good)
        holder: Any = changed
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = weird
        headers = {"Authorization": scope, "X-Amz-Target": target}
        link.request("POST", "/", json.dumps(changed).encode(), headers)
        answer = link.getresponse()
        said = answer.read()
        assert answer.status == 400, (path, weird, said)
    link.close()
