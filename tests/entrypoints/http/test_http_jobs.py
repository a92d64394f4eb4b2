"""Training jobs through boto3: every answer is checked by botocore's own parser, every error is a modelled one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

GROUP = "/aws/sagemaker/TrainingJobs"
LOSSES = "for i in range(3):\n    print(f'loss={i / 2};', flush=True)\n"
LONG = "import time\nprint('training', flush=True)\ntime.sleep(100)\n"


def code_of(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, str]:
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    found = error.value.response["Error"]
    return found["Code"], found["Message"]


def test_a_job_from_creation_to_its_model(endpoint: Any) -> None:
    sagemaker, s3 = endpoint.client("sagemaker"), endpoint.client("s3")
    bucket = "sagemaker-us-east-1-123456789012"
    s3.put_object(Bucket=bucket, Key="data/one/a.txt", Body=b"a")
    script = LOSSES + (
        "import os\nprint(os.listdir('/opt/ml/input/data/train'), os.environ['SM_CURRENT_HOST'])\n"
        "open('/opt/ml/model/weights', 'w').write('w')\n"
    )
    asked = endpoint.request(
        script,
        InputDataConfig=[
            {
                "ChannelName": "train",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": f"s3://{bucket}/data/one/",
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
            }
        ],
        Tags=[{"Key": "team", "Value": "red"}],
        Environment={"API_TOKEN": "not-hidden"},
        DebugHookConfig={"S3OutputPath": f"s3://{bucket}/debug"},
        ProfilerConfig={"DisableProfiler": True},
    )
    asked["AlgorithmSpecification"]["MetricDefinitions"] = [
        {"Name": "loss", "Regex": "loss=([0-9.]+);"}
    ]
    name = asked["TrainingJobName"]
    arn = sagemaker.create_training_job(**asked)["TrainingJobArn"]
    assert arn == f"arn:aws:sagemaker:us-east-1:123456789012:training-job/{name}"
    first = sagemaker.describe_training_job(TrainingJobName=name)
    assert first["TrainingJobStatus"] == "InProgress"
    found = endpoint.ended(name)
    assert (found["TrainingJobStatus"], found["SecondaryStatus"]) == ("Completed", "Completed")
    # The request comes back as it was sent, secrets included, tags excluded.
    for member, value in asked.items():
        if member in ("HyperParameters", "Environment", "ResourceConfig", "RoleArn"):
            assert found[member] == value
    algorithm = found["AlgorithmSpecification"]
    assert algorithm["TrainingImage"] == asked["AlgorithmSpecification"]["TrainingImage"]
    assert algorithm["MetricDefinitions"] == asked["AlgorithmSpecification"]["MetricDefinitions"]
    assert "Tags" not in found
    assert found["OutputDataConfig"]["KmsKeyId"] == ""
    assert found["BillableTimeInSeconds"] == found["TrainingTimeInSeconds"] >= 1
    assert found["TrainingStartTime"] < found["TrainingEndTime"] <= found["LastModifiedTime"]
    visits = found["SecondaryStatusTransitions"]
    assert [visit["Status"] for visit in visits] == [
        "Starting",
        "Downloading",
        "Training",
        "Uploading",
        "Completed",
    ]
    assert all(visit["StatusMessage"] and visit["EndTime"] for visit in visits)
    model = found["ModelArtifacts"]["S3ModelArtifacts"]
    assert model == f"s3://{bucket}/out/{name}/output/model.tar.gz"
    assert s3.head_object(Bucket=bucket, Key=f"out/{name}/output/model.tar.gz")["ContentLength"] > 0
    (last,) = found["FinalMetricDataList"]
    assert (last["MetricName"], last["Value"]) == ("loss", 1.0)
    assert endpoint.messages(name) == ["loss=0.0;", "loss=0.5;", "loss=1.0;", "['a.txt'] algo-1"]
    statistics = endpoint.client("cloudwatch").get_metric_statistics(
        Namespace=GROUP,
        MetricName="loss",
        Dimensions=[{"Name": "TrainingJobName", "Value": name}],
        StartTime=found["TrainingStartTime"],
        EndTime=time.time() + 60,
        Period=3600,
        Statistics=["Average", "SampleCount"],
    )
    assert sum(point["SampleCount"] for point in statistics["Datapoints"]) == 3


def test_the_log_says_what_stands_in_for_the_image(endpoint: Any) -> None:
    name = endpoint.create("print('ran')\n")
    endpoint.ended(name)
    first = endpoint.events(name)[0]["message"]
    assert "(PyTorch 2.9.0, CPU, Python 3.11) is not pulled: the job runs as a process" in first


def test_a_failed_job_says_why(endpoint: Any) -> None:
    found = endpoint.ended(endpoint.create("raise RuntimeError('no more patience')\n"))
    assert found["TrainingJobStatus"] == found["SecondaryStatus"] == "Failed"
    assert found["FailureReason"].startswith("AlgorithmError: ")
    assert "no more patience" in found["FailureReason"]


def test_everything_is_there_when_the_status_is_terminal(endpoint: Any) -> None:
    """A client that stops at the first terminal status reads the logs once more and never again."""
    sagemaker, logs = endpoint.client("sagemaker"), endpoint.client("logs")
    name = endpoint.create("for i in range(2000): print('line', i)\nprint('last', end='')\n")
    streams = logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")
    assert len(streams["logStreams"]) == 1  # before the first line
    while (
        sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobStatus"] == "InProgress"
    ):
        pass
    assert endpoint.messages(name)[-2:] == ["line 1999", "last"]


def test_log_times_never_change_and_never_go_back(endpoint: Any) -> None:
    name = endpoint.create(
        "import time\nfor i in range(8):\n    print(i, flush=True)\n    time.sleep(0.2)\n"
    )
    seen: list[list[tuple[str, int]]] = []
    while not seen or not any(message == "7" for message, _ in seen[-1]):
        seen.append([(one["message"], one["timestamp"]) for one in endpoint.events(name)])
    endpoint.ended(name)
    final = [(one["message"], one["timestamp"]) for one in endpoint.events(name)]
    times = [moment for _, moment in final]
    assert times == sorted(times)
    assert len(set(times)) > 2  # looked at while it ran
    for earlier in seen:
        assert final[: len(earlier)] == earlier


def test_two_hosts_have_two_streams(endpoint: Any) -> None:
    asked = endpoint.request("import os\nprint('I am', os.environ['SM_CURRENT_HOST'])\n")
    asked["ResourceConfig"]["InstanceCount"] = 2
    endpoint.client("sagemaker").create_training_job(**asked)
    name = asked["TrainingJobName"]
    assert endpoint.ended(name)["TrainingJobStatus"] == "Completed"
    for host in ("algo-1", "algo-2"):
        assert endpoint.messages(name, host) == [f"I am {host}"]


def test_stop_delete_and_their_refusals(endpoint: Any, eventually: Callable[..., None]) -> None:
    sagemaker = endpoint.client("sagemaker")
    asked = endpoint.request(LONG)
    name = asked["TrainingJobName"]
    sagemaker.create_training_job(**asked)
    with pytest.raises(sagemaker.exceptions.ResourceInUse, match="already exists"):
        sagemaker.create_training_job(**asked)
    with pytest.raises(sagemaker.exceptions.ResourceInUse):
        sagemaker.delete_training_job(TrainingJobName=name)
    eventually(lambda: "training" in endpoint.messages(name))
    sagemaker.stop_training_job(TrainingJobName=name)
    found = endpoint.ended(name)
    assert (found["TrainingJobStatus"], found["SecondaryStatus"]) == ("Stopped", "Stopped")
    with pytest.raises(ClientError) as error:
        sagemaker.stop_training_job(TrainingJobName=name)
    assert code_of(error) == (
        "ValidationException",
        "The request was rejected because the training job is in status Stopped.",
    )
    sagemaker.delete_training_job(TrainingJobName=name)
    for call in (sagemaker.describe_training_job, sagemaker.stop_training_job):
        with pytest.raises(ClientError) as error:
            call(TrainingJobName=name)
        assert code_of(error) == ("ValidationException", "Requested resource not found.")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"TrainingJobName": "a_b"}, "Value 'a_b' at 'trainingJobName' failed to satisfy"),
        ({"ResourceConfig": {"InstanceType": "ml.none", "VolumeSizeInGB": 1}}, "ml.none"),
        ({"StoppingCondition": {"MaxRuntimeInSeconds": -1}}, "maxRuntimeInSeconds"),
        ({"EnableManagedSpotTraining": True}, "MaxWaitTimeInSeconds"),
    ],
)
def test_bad_requests_are_refused_in_the_services_words(
    endpoint: Any, change: dict[str, Any], told: str
) -> None:
    asked = endpoint.request("", **change)
    with pytest.raises(ClientError) as error:
        endpoint.client("sagemaker", parameter_validation=False).create_training_job(**asked)
    code, message = code_of(error)
    assert code == "ValidationException"
    assert told.lower() in message.lower()


def test_an_empty_prefix_is_refused_at_creation(endpoint: Any) -> None:
    uri = "s3://sagemaker-us-east-1-123456789012/nothing/here/"
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}}
    asked = endpoint.request("", InputDataConfig=[{"ChannelName": "train", "DataSource": source}])
    with pytest.raises(ClientError) as error:
        endpoint.client("sagemaker").create_training_job(**asked)
    code, message = code_of(error)
    assert code == "ValidationException"
    assert f'No S3 objects found under S3 URL "{uri}"' in message


def test_what_is_not_carried_out_is_refused_by_name(endpoint: Any) -> None:
    sagemaker = endpoint.client("sagemaker")
    for call, name in (
        (sagemaker.list_models, "ListModels"),
        (sagemaker.list_experiments, "ListExperiments"),
        (sagemaker.list_processing_jobs, "ListProcessingJobs"),
    ):
        with pytest.raises(ClientError) as error:
            call()
        code, message = code_of(error)
        assert code == "ValidationException"
        assert name in message


def test_list_filters_before_it_pages(endpoint: Any) -> None:
    sagemaker = endpoint.client("sagemaker")
    stem = f"list-{time.time_ns()}"
    for number in range(5):
        script = "" if number % 2 else "raise SystemExit(1)"
        endpoint.create(script, TrainingJobName=f"{stem}-{number}")
    for number in range(5):
        endpoint.ended(f"{stem}-{number}")

    def listed(**asked: Any) -> list[str]:
        pages = sagemaker.get_paginator("list_training_jobs").paginate(
            NameContains=stem.upper(), PaginationConfig={"PageSize": 2}, **asked
        )
        rows = [row for page in pages for row in page["TrainingJobSummaries"]]
        assert all(row["SecondaryStatus"] and row["TrainingEndTime"] for row in rows)
        return [row["TrainingJobName"].removeprefix(f"{stem}-") for row in rows]

    assert listed() == ["4", "3", "2", "1", "0"]
    assert listed(SortBy="Name", SortOrder="Ascending") == ["0", "1", "2", "3", "4"]
    assert listed(StatusEquals="Completed", SortOrder="Ascending") == ["1", "3"]
    assert listed(SortBy="Status", SortOrder="Ascending") == ["1", "3", "0", "2", "4"]
    third = sagemaker.describe_training_job(TrainingJobName=f"{stem}-2")["CreationTime"]
    assert listed(CreationTimeAfter=third, SortOrder="Ascending") == ["2", "3", "4"]
    assert listed(CreationTimeBefore=third, SortOrder="Ascending") == ["0", "1", "2"]
    assert listed(LastModifiedTimeAfter=time.time() + 60) == []
    page = sagemaker.list_training_jobs(NameContains=stem, MaxResults=2)
    # What has been told does not come again, whatever happens to it meanwhile.
    sagemaker.delete_training_job(
        TrainingJobName=page["TrainingJobSummaries"][-1]["TrainingJobName"]
    )
    rest = sagemaker.list_training_jobs(NameContains=stem, NextToken=page["NextToken"])
    names = [row["TrainingJobName"][-1] for row in rest["TrainingJobSummaries"]]
    assert names == ["2", "1", "0"]
    assert "NextToken" not in rest
    for token, more in (("nonsense", {}), (page["NextToken"], {"StatusEquals": "Failed"})):
        with pytest.raises(ClientError) as error:
            sagemaker.list_training_jobs(NameContains=stem, NextToken=token, **more)
        assert code_of(error)[0] == "ValidationException"


def test_tags_and_search(endpoint: Any) -> None:
    sagemaker = endpoint.client("sagemaker")
    mark = f"mark-{time.time_ns()}"
    names = [
        endpoint.create(
            LOSSES, TrainingJobName=f"Tagged-{mark}-{n}", Tags=[{"Key": mark, "Value": str(n)}]
        )
        for n in range(3)
    ]
    for name in names:
        endpoint.ended(name)
    arn = sagemaker.describe_training_job(TrainingJobName=names[0])["TrainingJobArn"]
    assert arn.endswith(f"/tagged-{mark}-0")  # lower-cased, and understood all the same
    assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": mark, "Value": "0"}]
    added = sagemaker.add_tags(
        ResourceArn=arn, Tags=[{"Key": "more", "Value": "x"}, {"Key": mark, "Value": "9"}]
    )
    assert {tag["Key"]: tag["Value"] for tag in added["Tags"]} == {mark: "9", "more": "x"}
    sagemaker.delete_tags(ResourceArn=arn, TagKeys=["more", "absent"])
    assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": mark, "Value": "9"}]
    with pytest.raises(ClientError) as error:
        sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": f"k{n}", "Value": ""} for n in range(50)])
    assert code_of(error)[0] == "ValidationException"
    with pytest.raises(ClientError) as error:
        sagemaker.list_tags(ResourceArn=arn.replace("training-job", "model"))
    assert "model" in code_of(error)[1]

    def search(*filters: tuple[str, ...], **more: Any) -> list[str]:
        expression = {
            "Filters": [
                dict(zip(("Name", "Operator", "Value"), one, strict=False)) for one in filters
            ],
            **more,
        }
        pages = sagemaker.get_paginator("search").paginate(
            Resource="TrainingJob",
            SearchExpression=expression,
            SortBy="TrainingJobName",
            SortOrder="Ascending",
            PaginationConfig={"PageSize": 2},
        )
        return [
            one["TrainingJob"]["TrainingJobName"][-1] for page in pages for one in page["Results"]
        ]

    assert search((f"Tags.{mark}", "Exists")) == ["0", "1", "2"]
    assert search((f"Tags.{mark}", "Equals", "1")) == ["1"]
    assert search(
        (f"Tags.{mark}", "Equals", "1"), (f"Tags.{mark}", "Equals", "2"), Operator="Or"
    ) == [
        "1",
        "2",
    ]
    wanted = ("TrainingJobName", "Contains", mark)
    assert search(wanted, ("TrainingJobStatus", "Equals", "Completed")) == ["0", "1", "2"]
    assert search(wanted, (f"Tags.{mark}", "GreaterThan", "1")) == ["0", "2"]
    with pytest.raises(ClientError) as error:
        sagemaker.search(Resource="Endpoint")
    assert "Endpoint" in code_of(error)[1]


PROFILED = """
import json, time
def interval():
    with open("/opt/ml/input/config/profilerconfig.json") as source:
        return json.load(source)["ProfilingIntervalInMilliseconds"]
print("before", interval(), flush=True)
while interval() != 100:
    time.sleep(0.1)
print("after", interval(), flush=True)
"""


def test_update_reaches_a_job_that_runs(
    endpoint: Any, eventually: Callable[[Callable[[], object]], None]
) -> None:
    sagemaker = endpoint.client("sagemaker")
    profiler = {
        "S3OutputPath": "s3://sagemaker-us-east-1-123456789012/profile",
        "ProfilingIntervalInMilliseconds": 500,
    }
    name = endpoint.create(PROFILED, ProfilerConfig=profiler)
    eventually(lambda: "before 500" in endpoint.messages(name))
    sagemaker.update_training_job(
        TrainingJobName=name,
        ResourceConfig={"KeepAlivePeriodInSeconds": 60},
        ProfilerConfig={"ProfilingIntervalInMilliseconds": 100},
        RemoteDebugConfig={"EnableRemoteDebug": True},
    )
    assert endpoint.ended(name)["TrainingJobStatus"] == "Completed"
    assert endpoint.messages(name)[-1] == "after 100"
    found = sagemaker.describe_training_job(TrainingJobName=name)
    assert found["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 60
    assert found["ResourceConfig"]["InstanceType"] == "ml.m5.large"
    assert found["ProfilerConfig"] == {**profiler, "ProfilingIntervalInMilliseconds": 100}
    assert found["RemoteDebugConfig"] == {"EnableRemoteDebug": True}
    sagemaker.update_training_job(
        TrainingJobName=name, ResourceConfig={"KeepAlivePeriodInSeconds": 0}
    )
    for change in (
        {"ProfilerConfig": {"DisableProfiler": True}},
        {"RemoteDebugConfig": {"EnableRemoteDebug": False}},
    ):
        with pytest.raises(ClientError, match="in status Completed") as error:
            sagemaker.update_training_job(TrainingJobName=name, **change)
        assert code_of(error)[0] == "ValidationException"


def test_groups_of_instances(endpoint: Any) -> None:
    """ResourceConfig.InstanceGroups instead of InstanceType: one host each, one log stream each."""
    script = (
        "import json, os\n"
        "config = json.load(open('/opt/ml/input/config/resourceconfig.json'))\n"
        "print(os.environ['SM_CURRENT_HOST'], config['current_group_name'], config['hosts'])\n"
    )
    groups = [
        {"InstanceGroupName": "many", "InstanceType": "ml.m5.large", "InstanceCount": 2},
        {"InstanceGroupName": "one", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
    ]
    resources = {"InstanceGroups": groups, "VolumeSizeInGB": 1}
    name = endpoint.create(script, ResourceConfig=resources)
    found = endpoint.ended(name)
    assert found["TrainingJobStatus"] == "Completed", found.get("FailureReason")
    assert found["ResourceConfig"] == resources
    for host, group in (("algo-1", "many"), ("algo-2", "many"), ("algo-3", "one")):
        (said,) = endpoint.messages(name, host)
        assert said == f"{host} {group} ['algo-1', 'algo-2', 'algo-3']"


def test_jobs_of_the_command_line_are_the_same_jobs(endpoint: Any) -> None:
    (endpoint.home / "own.py").write_text("print('from a terminal')\n")
    name = f"own-{time.time_ns()}"
    done = endpoint.hotfire("run", "own.py", "--name", name)
    assert done.returncode == 0, done.stderr
    found = endpoint.client("sagemaker").describe_training_job(TrainingJobName=name)
    assert found["TrainingJobStatus"] == "Completed"
    assert "from a terminal" in endpoint.messages(name)
    created = endpoint.create("print('from a client')\n")
    endpoint.ended(created)
    assert "from a client" in endpoint.hotfire("logs", created).stdout


def test_other_jobs_wait_in_order(
    start_endpoint: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    endpoint = start_endpoint("--max-jobs", "1")
    sagemaker = endpoint.client("sagemaker")

    def status(name: str) -> str:
        sagemaker = endpoint.client("sagemaker")
        return str(sagemaker.describe_training_job(TrainingJobName=name)["SecondaryStatus"])

    first = endpoint.create(LONG)
    eventually(lambda: status(first) == "Training")
    waiting = [endpoint.create(LOSSES) for _ in range(3)]
    eventually(lambda: [status(name) for name in waiting] == ["Pending"] * 3)
    # One that waits can be stopped; it never starts.
    sagemaker.stop_training_job(TrainingJobName=waiting[1])
    eventually(lambda: status(waiting[1]) == "Stopped")
    # Neither the queue nor what runs needs the server; the next one has its buckets.
    port = endpoint.port
    endpoint.end(signal.SIGKILL)
    endpoint.start(port)
    assert status(first) == "Training"
    assert [status(name) for name in waiting] == ["Pending", "Stopped", "Pending"]
    endpoint.client("sagemaker").stop_training_job(TrainingJobName=first)
    ends = [endpoint.ended(name) for name in (first, waiting[0], waiting[2])]
    assert [end["TrainingJobStatus"] for end in ends] == ["Stopped", "Completed", "Completed"]
    assert ends[1]["TrainingEndTime"] <= ends[2]["TrainingStartTime"]
    buckets = endpoint.home / "home" / "endpoint" / "objects"
    assert list(buckets.iterdir())
    assert endpoint.end() == 0
    assert not buckets.exists()


def test_what_does_not_fit_can_be_refused(start_endpoint: Callable[..., Any]) -> None:
    """By the number of jobs, and by the memory that their instance types have."""
    endpoint = start_endpoint("--max-jobs", "2", "--max-memory", "40", "--when-full", "refuse")
    sagemaker = endpoint.client("sagemaker")

    def of(kind: str) -> dict[str, Any]:
        return {"ResourceConfig": {"InstanceType": kind, "InstanceCount": 1, "VolumeSizeInGB": 1}}

    running = [endpoint.create(LONG, **of("ml.g5.2xlarge"))]
    for kind, told in (
        ("ml.g5.2xlarge", "request delta of 32 GiB"),
        ("ml.g5.4xlarge", "instances have 64 GiB"),
    ):
        with pytest.raises(sagemaker.exceptions.ResourceLimitExceeded, match=told):
            endpoint.create(LOSSES, **of(kind))
    running.append(endpoint.create(LONG))
    with pytest.raises(sagemaker.exceptions.ResourceLimitExceeded, match="is 2 jobs, 40 GiB"):
        endpoint.create(LOSSES)
    for name in running:
        sagemaker.stop_training_job(TrainingJobName=name)
    for name in running:
        endpoint.ended(name)
    lines = [event["message"] for event in endpoint.events(running[1])]
    assert any("memory of ml.m5.large is not known" in line for line in lines)


def test_buckets_and_logs_are_kept(start_endpoint: Callable[..., Any]) -> None:
    endpoint = start_endpoint("--persist", "kept")
    name = endpoint.create("print('remember')\n")
    endpoint.ended(name)
    before = endpoint.events(name)
    endpoint.end(signal.SIGKILL)
    endpoint.start()
    assert endpoint.events(name) == before
    key = f"{name}/source/sourcedir.tar.gz"
    found = endpoint.client("s3").get_object(Bucket="sagemaker-us-east-1-123456789012", Key=key)
    assert len(found["Body"].read()) == found["ContentLength"] > 0


def test_rules_choose_by_instance_type_and_image(
    start_endpoint: Callable[..., Any], tmp_path: Any
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("instances:\n  ml.trn1.*: {backend: docker}\n  '*': {backend: process}\n")
    endpoint = start_endpoint("--rules", str(rules))
    asked = endpoint.request("print('ran')\n")
    asked["ResourceConfig"]["InstanceType"] = "ml.trn1.2xlarge"
    asked["AlgorithmSpecification"]["TrainingImage"] = "no-such-image:ever"
    with pytest.raises(ClientError) as error:
        endpoint.client("sagemaker").create_training_job(**asked)
    assert code_of(error)[0] == "ValidationException"  # no engine, or no such image
    asked["ResourceConfig"]["InstanceType"] = "ml.m5.large"
    endpoint.client("sagemaker").create_training_job(**asked)
    assert endpoint.ended(asked["TrainingJobName"])["TrainingJobStatus"] == "Completed"


def test_rules_rehearse_troubles_of_an_instance_type(
    start_endpoint: Callable[..., Any], tmp_path: Any
) -> None:
    """What code that retries or falls back to another type would meet, over the API."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "instances:\n  ml.p4d.*: {rehearse: capacity}\n  ml.p5.*: {rehearse: quota}\n"
        "  ml.m5.*: {interrupt_after: again}\n"
    )
    endpoint = start_endpoint("--rules", str(rules))
    sagemaker = endpoint.client("sagemaker")

    def asked(kind: str, **more: Any) -> Any:
        request = endpoint.request("import time\nprint('again', flush=True)\ntime.sleep(1)\n")
        request["ResourceConfig"]["InstanceType"] = kind
        return request | more

    with pytest.raises(ClientError) as refused:
        sagemaker.create_training_job(**asked("ml.p5.48xlarge"))
    assert code_of(refused)[0] == "ResourceLimitExceeded"
    nowhere = asked("ml.p4d.24xlarge")
    sagemaker.create_training_job(**nowhere)
    ended = endpoint.ended(nowhere["TrainingJobName"])
    assert ended["TrainingJobStatus"] == "Failed"
    assert ended["FailureReason"].startswith("CapacityError: Unable to provision")
    stopping = {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 120}
    spot = asked("ml.m5.large", EnableManagedSpotTraining=True, StoppingCondition=stopping)
    on_demand = asked("ml.m5.large")
    for request, interruptions in ((spot, 1), (on_demand, 0)):
        sagemaker.create_training_job(**request)
        found = endpoint.ended(request["TrainingJobName"])
        assert found["TrainingJobStatus"] == "Completed"
        passed = [one["Status"] for one in found["SecondaryStatusTransitions"]]
        assert passed.count("Interrupted") == interruptions


def test_data_can_be_elsewhere(start_endpoint: Callable[..., Any], s3_server: Any) -> None:
    """With AWS_ENDPOINT_URL_S3, clients and jobs use that S3 with the caller's own credentials."""
    endpoint = start_endpoint(
        AWS_ENDPOINT_URL_S3=s3_server.url,
        AWS_ACCESS_KEY_ID="testing",
        AWS_SECRET_ACCESS_KEY="testing",
    )
    elsewhere = s3_server.client()
    elsewhere.create_bucket(Bucket="elsewhere")
    elsewhere.put_object(Bucket="elsewhere", Key="in/a", Body=b"a")
    elsewhere.create_bucket(Bucket="unused")
    with pytest.raises(ClientError):
        endpoint.client("s3").list_buckets()
    said = endpoint.hotfire("env").stdout
    assert f"export AWS_ENDPOINT_URL_S3={s3_server.url}" in said
    assert "AWS_ACCESS_KEY_ID" not in said
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://elsewhere/in/"}}
    algorithm = {
        "TrainingImage": "any",
        "TrainingInputMode": "File",
        "ContainerEntrypoint": ["/bin/sh", "-c", "cp /opt/ml/input/data/train/a /opt/ml/model/"],
    }
    sagemaker = endpoint.client("sagemaker")
    sagemaker.create_training_job(
        TrainingJobName="away",
        RoleArn="arn:aws:iam::123456789012:role/hotfire",
        AlgorithmSpecification=algorithm,
        InputDataConfig=[{"ChannelName": "train", "DataSource": source}],
        OutputDataConfig={"S3OutputPath": "s3://elsewhere/out"},
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 60},
    )
    assert endpoint.ended("away")["TrainingJobStatus"] == "Completed"
    elsewhere.head_object(Bucket="elsewhere", Key="out/away/output/model.tar.gz")


def test_one_endpoint_per_store(endpoint: Any, tmp_path: Any) -> None:
    again = endpoint.hotfire("serve", "--port", "0")
    assert again.returncode == 2
    assert "is running already" in again.stderr
    environ = {**endpoint.environ, "HOTFIRE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "hotfire.entrypoints"]
    taken = subprocess.run(
        [*command, "serve", "--port", str(endpoint.port)],
        env=environ,
        text=True,
        capture_output=True,
        check=False,
    )
    assert taken.returncode == 2
    assert "cannot be listened on" in taken.stderr
    for words in (["env"], ["exec", "true"]):
        none = subprocess.run(
            [*command, *words], env=environ, text=True, capture_output=True, check=False
        )
        assert none.returncode == 2
        assert "hotfire serve" in none.stderr


def test_exec_shows_the_role_to_one_command_and_keeps_its_exit_code(endpoint: Any) -> None:
    done = endpoint.hotfire("exec", "--", "cat", "/opt/ml/metadata/resource-metadata.json")
    assert json.loads(done.stdout) == {"ExecutionRoleArn": "arn:aws:iam::123456789012:role/hotfire"}
    assert endpoint.hotfire("exec", "--", "sh", "-c", "exit 7").returncode == 7
    assert endpoint.hotfire("exec", "no-such-program").returncode == 2
    evaluated = endpoint.hotfire("env").stdout + 'echo "$AWS_ENDPOINT_URL"\n'
    shell = subprocess.run(
        ["sh"],
        input=evaluated,
        env={**endpoint.environ, "AWS_ENDPOINT_URL_S3": "http://wrong"},
        text=True,
        capture_output=True,
        check=True,
    )
    assert shell.stdout == f"{endpoint.url}\n"
