"""CreateTrainingJob requests: what becomes a job, and every fault of one that does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime import request
from hotfire.runtime.errors import UnsupportedError
from hotfire.runtime.refusals import check_without_image
from hotfire.runtime.spec import (
    Distribution,
    FileSystemDataSource,
    InputMode,
    S3DataSource,
    TrainingJob,
)
from hotfire.runtime.traits import RequestInvalid

DATA = Path(__file__).parent / "data"


def document(name: str) -> dict[str, Any]:
    return request.load_text((DATA / name).read_text(encoding="utf-8"), name)


def parse(raw: Any) -> TrainingJob:
    return request.parse(raw, region="us-west-2")


def faults_of(raw: Any) -> dict[str, str]:
    with pytest.raises(RequestInvalid) as caught:
        parse(raw)
    assert caught.value.what.startswith(f"{len(caught.value.faults)} validation error")
    assert "\n" not in caught.value.what
    assert caught.value.do
    return {fault.path: fault.constraint for fault in caught.value.faults}


# --- what is accepted --------------------------------------------------------------------------


def test_a_request_of_the_sdk() -> None:
    raw = document("sdk_torch_distributed.json")
    job = parse(raw)
    assert job.training_job_name == raw["TrainingJobName"]
    assert job.region == "us-west-2"
    assert job.resource_config.hosts == ("algo-1", "algo-2")
    assert job.hyper_parameters == raw["HyperParameters"]
    train, test = job.input_data_config
    assert train.data_source == S3DataSource(
        s3_uri="s3://sagemaker-us-west-2-123456789012/data/train"
    )
    assert test.input_mode is InputMode.FILE
    assert job.stopping_condition.max_runtime_in_seconds == 86_400
    assert job.request == raw
    assert request.not_yet(job) == []


def test_defaults() -> None:
    job = parse(document("minimal.json"))
    assert job.input_data_config == ()
    assert job.hyper_parameters == {} == job.environment
    assert job.checkpoint_config is None
    assert job.output_data_config.compression_type == "GZIP"
    assert job.stopping_condition.max_runtime_in_seconds == 86_400
    assert job.resource_config.volume_size_in_gb == 30
    assert not job.enable_network_isolation


def test_groups_a_file_system_and_checkpoints() -> None:
    job = parse(document("heterogeneous.yaml"))
    train, data = job.resource_config.instance_groups
    assert train.hosts == tuple(f"algo-{number}" for number in range(1, 11))
    assert data.hosts == ("algo-11", "algo-12")
    assert job.resource_config.hosts[:3] == ("algo-1", "algo-10", "algo-11")
    images, shared = job.input_data_config
    assert isinstance(images.data_source, S3DataSource)
    assert images.data_source.instance_group_names == ("data",)
    assert images.content_type == "application/x-image"
    assert shared.data_source == FileSystemDataSource(
        file_system_id="fs-0123456789abcdef0",
        file_system_type="EFS",
        file_system_access_mode="ro",
        directory_path="/data",
    )
    assert job.checkpoint_config is not None
    assert job.checkpoint_config.local_path == "/opt/ml/state"
    assert job.output_data_config.compression_type == "NONE"
    assert job.algorithm_specification.metric_definitions[0].name == "loss"
    assert job.enable_network_isolation


def test_an_entry_point_of_its_own() -> None:
    job = parse(document("sdk_v3_entrypoint.json"))
    assert job.algorithm_specification.container_entrypoint == ("/bin/bash",)
    assert job.algorithm_specification.container_arguments[0] == "-c"


def test_pipe_shards_and_shuffle_are_understood() -> None:
    raw = document("sdk_torch_distributed.json")
    channel = raw["InputDataConfig"][0]
    channel |= {
        "InputMode": "Pipe",
        "RecordWrapperType": "RecordIO",
        "CompressionType": "Gzip",
        "ShuffleConfig": {"Seed": -(2**63)},
    }
    channel["DataSource"]["S3DataSource"]["S3DataDistributionType"] = "ShardedByS3Key"
    parsed = parse(raw).input_data_config[0]
    assert (parsed.input_mode, parsed.shuffle_seed) == (InputMode.PIPE, -(2**63))
    assert (parsed.record_wrapper_type, parsed.compression_type) == ("RecordIO", "Gzip")
    assert isinstance(parsed.data_source, S3DataSource)
    assert parsed.data_source.s3_data_distribution_type is Distribution.SHARDED_BY_S3_KEY


def test_file_uris_and_the_local_type_are_ours() -> None:
    raw = document("minimal.json")
    raw["InputDataConfig"] = document("sdk_torch_distributed.json")["InputDataConfig"]
    source = raw["InputDataConfig"][0]["DataSource"]["S3DataSource"]
    source["S3Uri"] = "file:///home/me/my data/größe"
    raw["CheckpointConfig"] = {"S3Uri": "file:///tmp/checkpoints"}
    job = parse(raw)
    assert isinstance(job.input_data_config[0].data_source, S3DataSource)
    assert job.input_data_config[0].data_source.s3_uri == "file:///home/me/my data/größe"
    assert job.resource_config.group_of("algo-1").instance_type == "local"


def test_tags_beyond_ascii_match_their_pattern() -> None:
    raw = document("minimal.json")
    raw["Tags"] = [{"Key": "größe", "Value": "日本 5"}]
    parse(raw)
    raw["Tags"] = [{"Key": "größe", "Value": "日本 5 §"}]
    assert "tags.1.member.value" in faults_of(raw)
    raw["Tags"] = [{"Key": "a*b", "Value": ""}]
    assert "tags.1.member.key" in faults_of(raw)


def test_the_request_is_left_alone() -> None:
    raw = document("heterogeneous.yaml")
    before = copy.deepcopy(raw)
    parse(raw)
    assert raw == before


# --- what is refused ---------------------------------------------------------------------------

Edit = Callable[[dict[str, Any]], object]


def s3(raw: dict[str, Any], channel: int = 0) -> dict[str, Any]:
    source: dict[str, Any] = raw["InputDataConfig"][channel]["DataSource"]["S3DataSource"]
    return source


FILE_SYSTEM = {
    "FileSystemId": "fs-0123456789abcdef0",
    "FileSystemType": "EFS",
    "FileSystemAccessMode": "rw",
    "DirectoryPath": "/x",
}
CHANNEL = "inputDataConfig.1.member"
SOURCE = f"{CHANNEL}.dataSource.s3DataSource"

REFUSED: dict[str, tuple[Edit, dict[str, str]]] = {
    # the traits
    "no name": (lambda raw: raw.pop("TrainingJobName"), {"trainingJobName": "not be null"}),
    "name pattern": (
        lambda raw: raw.update(TrainingJobName="a_b"),
        {"trainingJobName": "regular expression pattern: [a-zA-Z0-9]"},
    ),
    "name with a newline": (
        lambda raw: raw.update(TrainingJobName="ab\n"),
        {"trainingJobName": "regular expression"},
    ),
    "long name": (
        lambda raw: raw.update(TrainingJobName="a" * 64),
        {"trainingJobName": "regular expression"},
    ),
    "null": (lambda raw: raw.update(VpcConfig=None), {"vpcConfig": "not be null"}),
    "count as text": (
        lambda raw: raw["ResourceConfig"].update(InstanceCount="2"),
        {"resourceConfig.instanceCount": "an integer"},
    ),
    "count as boolean": (
        lambda raw: raw["ResourceConfig"].update(InstanceCount=True),
        {"resourceConfig.instanceCount": "an integer"},
    ),
    "count as float": (
        lambda raw: raw["ResourceConfig"].update(InstanceCount=2.0),
        {"resourceConfig.instanceCount": "an integer"},
    ),
    "count beyond 32 bits": (
        lambda raw: raw["ResourceConfig"].update(InstanceCount=2**31),
        {"resourceConfig.instanceCount": "less than or equal to 2147483647"},
    ),
    "negative count": (
        lambda raw: raw["ResourceConfig"].update(InstanceCount=-1),
        {"resourceConfig.instanceCount": "greater than or equal to 0"},
    ),
    "type": (
        lambda raw: raw["ResourceConfig"].update(InstanceType="ml.trn1.2xl"),
        {"resourceConfig.instanceType": "enum value set: [ml.trn1.2xlarge"},
    ),
    "hyperparameter as a number": (
        lambda raw: raw["HyperParameters"].update(epochs=5),
        {"hyperParameters.epochs": "Map value must satisfy constraint: [Member must be a string]"},
    ),
    "long hyperparameter": (
        lambda raw: raw["HyperParameters"].update(x="y" * 2501),
        {"hyperParameters.x": "length less than or equal to 2500"},
    ),
    "hyperparameter with a newline": (
        lambda raw: raw["HyperParameters"].update(x="a\nb"),
        {"hyperParameters.x": "regular expression pattern: .*"},
    ),
    "101 hyperparameters": (
        lambda raw: raw.update(HyperParameters={f"h{number}": "" for number in range(101)}),
        {"hyperParameters": "length less than or equal to 100"},
    ),
    "environment name": (
        lambda raw: raw.update(Environment={"1A": "x"}),
        {"environment": "Map keys must satisfy constraint: [Member must satisfy regular"},
    ),
    "21 channels": (
        lambda raw: raw.update(
            InputDataConfig=[
                {**raw["InputDataConfig"][0], "ChannelName": f"c{number}"} for number in range(21)
            ]
        ),
        {"inputDataConfig": "length less than or equal to 20"},
    ),
    "no channels": (
        lambda raw: raw.update(InputDataConfig=[]),
        {"inputDataConfig": "length greater than or equal to 1"},
    ),
    "channel name": (
        lambda raw: raw["InputDataConfig"][1].update(ChannelName="a b"),
        {"inputDataConfig.2.member.channelName": "regular expression"},
    ),
    "uri": (lambda raw: s3(raw).update(S3Uri="/data"), {f"{SOURCE}.s3Uri": "(https|s3)://"}),
    "unknown member": (
        lambda raw: raw["ResourceConfig"].update(InstanceCont=1),
        {"resourceConfig.instanceCont": "defined by CreateTrainingJob"},
    ),
    "list for an object": (
        lambda raw: raw.update(ResourceConfig=[]),
        {"resourceConfig": "an object"},
    ),
    "half a character": (
        lambda raw: raw["HyperParameters"].update(x="\ud800"),
        {"hyperParameters.x": "Unicode text"},
    ),
    "role": (lambda raw: raw.update(RoleArn="admin"), {"roleArn": "arn:aws"}),
    # the table
    "no algorithm": (
        lambda raw: raw.pop("AlgorithmSpecification"),
        {"algorithmSpecification": "not be null"},
    ),
    "no resources": (lambda raw: raw.pop("ResourceConfig"), {"resourceConfig": "not be null"}),
    "no stopping condition": (
        lambda raw: raw.pop("StoppingCondition"),
        {"stoppingCondition": "not be null"},
    ),
    "no image": (
        lambda raw: raw["AlgorithmSpecification"].pop("TrainingImage"),
        {"algorithmSpecification.trainingImage": "not be null"},
    ),
    "image and algorithm": (
        lambda raw: raw["AlgorithmSpecification"].update(AlgorithmName="xgboost"),
        {"algorithmSpecification.algorithmName": "null when trainingImage"},
    ),
    "no count": (
        lambda raw: raw["ResourceConfig"].pop("InstanceCount"),
        {"resourceConfig.instanceCount": "not be null"},
    ),
    "count 0": (
        lambda raw: raw["ResourceConfig"].update(InstanceCount=0),
        {"resourceConfig.instanceCount": "greater than or equal to 1"},
    ),
    "volume 0 with EBS": (
        lambda raw: raw["ResourceConfig"].update(InstanceType="ml.m5.large", VolumeSizeInGB=0),
        {"resourceConfig.volumeSizeInGB": "greater than or equal to 1"},
    ),
    "volume key with local disks": (
        lambda raw: raw["ResourceConfig"].update(VolumeKmsKeyId="abc"),
        {"resourceConfig.volumeKmsKeyId": "local storage"},
    ),
    "groups and type": (
        lambda raw: raw["ResourceConfig"].update(
            InstanceGroups=[
                {"InstanceType": "ml.m5.large", "InstanceCount": 0, "InstanceGroupName": "a"},
                {"InstanceType": "ml.m5.large", "InstanceCount": 1, "InstanceGroupName": "a"},
            ]
        ),
        {
            "resourceConfig.instanceType": "null when instanceGroups",
            "resourceConfig.instanceCount": "null when instanceGroups",
            "resourceConfig.instanceGroups.1.member.instanceCount": "equal to 1",
            "resourceConfig.instanceGroups": "unique instanceGroupName",
        },
    ),
    "channel twice": (
        lambda raw: raw["InputDataConfig"][1].update(ChannelName="train"),
        {"inputDataConfig": "unique channelName"},
    ),
    "channel above": (
        lambda raw: raw["InputDataConfig"][0].update(ChannelName=".."),
        {f"{CHANNEL}.channelName": "a directory below"},
    ),
    "no source": (
        lambda raw: raw["InputDataConfig"][0].update(DataSource={}),
        {f"{CHANNEL}.dataSource": "exactly one"},
    ),
    "two sources": (
        lambda raw: (
            raw["InputDataConfig"][0]["DataSource"].update(FileSystemDataSource=FILE_SYSTEM),
            raw.update(VpcConfig={"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}),
        ),
        {f"{CHANNEL}.dataSource": "exactly one"},
    ),
    "fast file of a manifest": (
        lambda raw: (
            raw["AlgorithmSpecification"].update(TrainingInputMode="FastFile"),
            s3(raw).update(S3DataType="ManifestFile"),
        ),
        {f"{SOURCE}.s3DataType": "S3Prefix when"},
    ),
    "augmented manifest in File mode": (
        lambda raw: s3(raw).update(S3DataType="AugmentedManifestFile", AttributeNames=["a"]),
        {f"{CHANNEL}.inputMode": "Pipe when"},
    ),
    "augmented manifest without attributes": (
        lambda raw: (
            raw["InputDataConfig"][0].update(InputMode="Pipe"),
            s3(raw).update(S3DataType="AugmentedManifestFile"),
        ),
        {f"{SOURCE}.attributeNames": "not be null"},
    ),
    "attributes of a prefix": (
        lambda raw: s3(raw).update(AttributeNames=["a"]),
        {f"{SOURCE}.attributeNames": "null unless"},
    ),
    "file system by pipe, without a VPC, with a relative path": (
        lambda raw: raw["InputDataConfig"][0].update(
            InputMode="Pipe",
            DataSource={"FileSystemDataSource": {**FILE_SYSTEM, "DirectoryPath": "x"}},
        ),
        {
            f"{CHANNEL}.inputMode": "File when",
            "vpcConfig": "not be null",
            f"{CHANNEL}.dataSource.fileSystemDataSource.directoryPath": "begin with /",
        },
    ),
    "group that is not there": (
        lambda raw: s3(raw).update(InstanceGroupNames=["gpu"]),
        {f"{SOURCE}.instanceGroupNames": "name instance groups"},
    ),
    "29 days": (
        lambda raw: raw["StoppingCondition"].update(MaxRuntimeInSeconds=29 * 86_400),
        {"stoppingCondition.maxRuntimeInSeconds": "2419200"},
    ),
    "spot without a wait": (
        lambda raw: raw.update(EnableManagedSpotTraining=True),
        {"stoppingCondition.maxWaitTimeInSeconds": "not be null"},
    ),
    "wait without spot": (
        lambda raw: raw["StoppingCondition"].update(MaxWaitTimeInSeconds=86_400),
        {"stoppingCondition.maxWaitTimeInSeconds": "null unless"},
    ),
    "short wait": (
        lambda raw: (
            raw["StoppingCondition"].update(MaxWaitTimeInSeconds=60),
            raw.update(EnableManagedSpotTraining=True),
        ),
        {"stoppingCondition.maxWaitTimeInSeconds": "at least maxRuntimeInSeconds"},
    ),
    "warm pool with spot": (
        lambda raw: (
            raw["StoppingCondition"].update(MaxWaitTimeInSeconds=86_400),
            raw["ResourceConfig"].update(KeepAlivePeriodInSeconds=60),
            raw.update(EnableManagedSpotTraining=True),
        ),
        {"resourceConfig.keepAlivePeriodInSeconds": "null with managed spot"},
    ),
    "relative checkpoints": (
        lambda raw: raw.update(CheckpointConfig={"S3Uri": "s3://b/c", "LocalPath": "../x"}),
        {"checkpointConfig.localPath": "absolute path"},
    ),
    "file with a host": (
        lambda raw: s3(raw).update(S3Uri="file://data/train"),
        {f"{SOURCE}.s3Uri": "file:///absolute/path"},
    ),
    "NUL": (
        lambda raw: (
            raw.update(Environment={"A": "a\0b"}),
            raw["AlgorithmSpecification"].update(ContainerEntrypoint=["a\0"]),
        ),
        {"environment.A": "process", "algorithmSpecification.containerEntrypoint": "process"},
    ),
}


@pytest.mark.parametrize(("edit", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_fault_is_found_where_it_is(edit: Edit, expected: dict[str, str]) -> None:
    raw = document("sdk_torch_distributed.json")
    edit(raw)
    found = faults_of(raw)
    assert found.keys() == expected.keys()
    for path, part in expected.items():
        assert part in found[path]


def test_all_faults_at_once() -> None:
    raw = document("sdk_torch_distributed.json")
    raw["TrainingJobName"] = "a_b"
    raw["ResourceConfig"] |= {"InstanceCount": 0, "InstanceTyp": "x"}
    raw["InputDataConfig"][0].pop("ChannelName")
    s3(raw, 1)["S3Uri"] = "nowhere"
    raw["HyperParameters"]["epochs"] = 3
    raw["Environment"] = {"A": 1}
    assert set(faults_of(raw)) == {
        "trainingJobName",
        "resourceConfig.instanceCount",
        "resourceConfig.instanceTyp",
        "inputDataConfig.1.member.channelName",
        "inputDataConfig.2.member.dataSource.s3DataSource.s3Uri",
        "hyperParameters.epochs",
        "environment.A",
    }


def test_what_to_do_stands_below_the_fault_that_it_is_for() -> None:
    raw = document("sdk_torch_distributed.json")
    raw["AlgorithmSpecification"]["TrainingInputMode"] = "Fil"
    raw["OutputDataConfig"]["S3OutputPath"] = "/tmp/out"
    raw["ResourceConfig"]["InstanceCount"] = "2"
    with pytest.raises(RequestInvalid) as caught:
        parse(raw)
    mode, mean, output, count, quotes = caught.value.lines()
    assert "'algorithmSpecification.trainingInputMode'" in mode and "did you mean File?" in mean
    assert "'outputDataConfig.s3OutputPath'" in output
    assert "'resourceConfig.instanceCount'" in count and "without quotes" in quotes


def test_the_form_is_the_services() -> None:
    raw = document("minimal.json")
    raw["ResourceConfig"]["InstanceCount"] = 0
    with pytest.raises(RequestInvalid) as caught:
        parse(raw)
    assert caught.value.what == (
        "1 validation error detected: Value '0' at 'resourceConfig.instanceCount' failed to satisfy "
        "constraint: Member must have value greater than or equal to 1"
    )


@pytest.mark.parametrize(
    ("edit", "hint"),
    [
        (lambda raw: raw.update(HyperParameter={}), "HyperParameters"),
        (lambda raw: raw["ResourceConfig"].update(instancetype="x"), "InstanceType"),
        (lambda raw: raw["ResourceConfig"].update(InstanceType="ml.p3.2xlrge"), "ml.p3.2xlarge"),
        (
            lambda raw: raw["AlgorithmSpecification"].update(TrainingInputMode="fastfile"),
            "FastFile",
        ),
        (
            lambda raw: raw["HyperParameters"].update(a=1),
            "hyperParameters.a: put the value in quotes",
        ),
    ],
)
def test_near_matches_are_named(edit: Edit, hint: str) -> None:
    raw = document("sdk_torch_distributed.json")
    edit(raw)
    with pytest.raises(RequestInvalid) as caught:
        parse(raw)
    assert hint in caught.value.do


@pytest.mark.parametrize(
    "edit",
    [
        lambda raw: raw.update(Environment={"HARMLESS": "hunter2" + "x" * 600}),
        lambda raw: raw.update(Environment={"A": ["hunter2"]}),
        lambda raw: raw.update(Environment="A=hunter2"),
        lambda raw: raw.update(Environment=["A=hunter2"]),
        lambda raw: raw["HyperParameters"].update(hub_token="hunter2\n"),
        lambda raw: raw["HyperParameters"].update(apiKey="hunter2\n"),
        lambda raw: raw["HyperParameters"].update(url="https://me:hunter2@host/\n"),
        lambda raw: raw.update(Password="hunter2"),
        lambda raw: raw["HyperParameters"].update(password=["hunter2"]),
    ],
)
def test_secrets_do_not_show_in_errors(edit: Edit) -> None:
    raw = document("sdk_torch_distributed.json")
    edit(raw)
    with pytest.raises(RequestInvalid) as caught:
        parse(raw)
    assert "hunter2" not in str(caught.value)
    assert all("hunter2" not in str(fault) for fault in caught.value.faults)


@pytest.mark.parametrize("raw", [None, [], "text", 5, {}, {"TrainingJobName": {}}])
def test_nonsense_is_refused_and_not_crashed_on(raw: Any) -> None:
    assert faults_of(raw)


def test_values_of_the_wrong_kind_do_not_break_the_table() -> None:
    """Every member, one at a time, replaced by values of other kinds."""
    whole = document("heterogeneous.yaml")
    paths: list[tuple[str | int, ...]] = []

    def collect(value: Any, path: tuple[str | int, ...]) -> None:
        paths.append(path)
        if isinstance(value, dict):
            for key, item in value.items():
                collect(item, (*path, key))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                collect(item, (*path, index))

    collect(whole, ())
    for path in filter(None, paths):
        for wrong in (None, [], {}, 7, "x", [None], {"a": 1}, True):
            raw = copy.deepcopy(whole)
            holder: Any = raw
            for step in path[:-1]:
                holder = holder[step]
            holder[path[-1]] = wrong
            try:
                parse(raw)
            except (RequestInvalid, UnsupportedError):
                continue


# --- refused by name ---------------------------------------------------------------------------

UNSUPPORTED: dict[str, tuple[Edit, str]] = {
    "built-in algorithm": (
        lambda raw: raw.update(
            AlgorithmSpecification={"AlgorithmName": "xgboost", "TrainingInputMode": "File"}
        ),
        "AlgorithmName xgboost",
    ),
    "serverless": (
        lambda raw: raw.update(
            ServerlessJobConfig={
                "BaseModelArn": "arn:aws:sagemaker:us-east-1:aws:hub-content/Hub/Model/m/1.0.0",
                "JobType": "FineTuning",
            }
        ),
        "ServerlessJobConfig",
    ),
    "model parallel": (
        lambda raw: raw["HyperParameters"].update(mp_parameters="{}"),
        "smdistributed model parallel",
    ),
    "data parallel": (
        lambda raw: raw["HyperParameters"].update(
            sagemaker_distributed_dataparallel_enabled="true"
        ),
        "smdistributed data parallel",
    ),
    "pytorchddp": (
        lambda raw: raw["HyperParameters"].update(sagemaker_pytorch_ddp_enabled="true"),
        "pytorchddp",
    ),
    "parameter server": (
        lambda raw: raw["HyperParameters"].update(sagemaker_parameter_server_enabled="true"),
        "TensorFlow",
    ),
    "TensorFlow compiler": (
        lambda raw: (
            raw["HyperParameters"].update(sagemaker_training_compiler_enabled='"true"'),
            raw["AlgorithmSpecification"].update(
                TrainingImage="1.dkr/huggingface-tensorflow-trcomp-training:2.6.3-gpu-py38"
            ),
        ),
        "TensorFlow image",
    ),
    "instance preferences": (
        lambda raw: raw["ResourceConfig"].update(
            InstancePreferences=[{"InstanceType": "ml.p5.48xlarge"}]
        ),
        "ResourceConfig.InstancePreferences",
    ),
    "Converse": (lambda raw: s3(raw).update(S3DataType="Converse"), "Converse"),
    "hub": (
        lambda raw: s3(raw).update(HubAccessConfig={"HubContentArn": "arn"}),
        "hub cannot be fetched",
    ),
}


def test_several_refusals_are_told_one_a_line_each_with_what_to_do() -> None:
    raw = document("sdk_torch_distributed.json")
    s3(raw).update(S3DataType="Converse")
    raw["HyperParameters"]["mp_parameters"] = "{}"
    with pytest.raises(UnsupportedError) as caught:
        parse(raw)
    head, source, parallel = caught.value.what.splitlines()
    assert head == "2 things cannot be had here:"
    assert "Converse" in source and source.endswith("Give S3Prefix.")
    assert "mp_parameters" in parallel and "--distribution torch_distributed" in parallel


@pytest.mark.parametrize(("edit", "named"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_what_will_not_run_is_refused_by_name(edit: Edit, named: str) -> None:
    raw = document("sdk_torch_distributed.json")
    edit(raw)
    with pytest.raises(UnsupportedError) as caught:
        parse(raw)
    assert named in caught.value.what
    assert caught.value.do


def test_arguments_for_the_image_s_entry_point_need_an_image() -> None:
    raw = document("sdk_torch_distributed.json")
    raw["AlgorithmSpecification"].update(ContainerArguments=["serve"])
    with pytest.raises(UnsupportedError, match="ContainerArguments without") as caught:
        check_without_image(parse(raw))
    assert "--backend docker" in caught.value.do


def test_an_entry_point_of_its_own_may_use_these_names() -> None:
    raw = document("sdk_v3_entrypoint.json")
    raw["HyperParameters"]["mp_parameters"] = "5"
    assert parse(raw).hyper_parameters["mp_parameters"] == "5"


NOT_YET: dict[str, tuple[Edit, str]] = {
    "mpi": (
        lambda raw: raw["HyperParameters"].update(sagemaker_mpi_enabled="true"),
        "sagemaker_mpi_enabled",
    ),
}


@pytest.mark.parametrize(("edit", "named"), NOT_YET.values(), ids=NOT_YET)
def test_what_does_not_run_yet_is_said(edit: Edit, named: str) -> None:
    raw = document("sdk_torch_distributed.json")
    edit(raw)
    lines = request.not_yet(parse(raw))
    assert any(named in line for line in lines)
    assert all("\n" not in line for line in lines)


USED = {
    "CreateTrainingJobRequest": "TrainingJobName HyperParameters AlgorithmSpecification InputDataConfig "
    "OutputDataConfig ResourceConfig StoppingCondition EnableNetworkIsolation EnableManagedSpotTraining "
    "CheckpointConfig Environment RetryStrategy ServerlessJobConfig",
    "AlgorithmSpecification": "TrainingImage AlgorithmName TrainingInputMode ContainerEntrypoint "
    "ContainerArguments EnableSageMakerMetricsTimeSeries MetricDefinitions",
    "ResourceConfig": "InstanceType InstanceCount InstanceGroups InstancePreferences "
    "SelectedInstanceType SelectedInstanceCount",
    "OutputDataConfig": "S3OutputPath CompressionType",
    "StoppingCondition": "MaxRuntimeInSeconds MaxWaitTimeInSeconds",
    "Channel": "ChannelName DataSource ContentType CompressionType RecordWrapperType InputMode "
    "ShuffleConfig",
    "DataSource": "S3DataSource FileSystemDataSource DatasetSource",
    "S3DataSource": "S3DataType S3Uri S3DataDistributionType AttributeNames InstanceGroupNames "
    "ModelAccessConfig HubAccessConfig",
    "CheckpointConfig": "S3Uri LocalPath",
    "RetryStrategy": "MaximumRetryAttempts",
    "InstanceGroup": "InstanceType InstanceCount InstanceGroupName",
}
"""What the plan uses or :mod:`hotfire.runtime.refusals` refuses."""


@pytest.mark.parametrize("structure", USED)
def test_every_member_of_the_api_is_used_refused_or_listed(structure: str) -> None:
    """A member that a newer service model brings must not be ignored in silence."""
    from hotfire.runtime import refusals, service_model

    top = structure == service_model.ROOT
    listed = {
        name.rpartition(".")[2]
        for name in refusals._IGNORED
        if name.rpartition(".")[0] == ("" if top else structure)
    }
    assert set(service_model.load()[structure]["members"]) == set(USED[structure].split()) | listed


def test_what_has_no_meaning_here_is_listed() -> None:
    lines = request.ignored(parse(document("heterogeneous.yaml")))
    named = {line.partition(":")[0] for line in lines}
    assert {"VpcConfig", "ResourceConfig.VolumeSizeInGB", "RoleArn"} <= named
    assert "Tags" not in named
    lines = request.ignored(parse(document("sdk_torch_distributed.json")))
    assert any(line.startswith("Tags") for line in lines)
    assert any(line.startswith("DebugHookConfig") for line in lines)


def test_a_document_survives_the_way_to_the_store_and_back() -> None:
    job = parse(document("heterogeneous.yaml"))
    assert parse(json.loads(json.dumps(job.request))) == job
