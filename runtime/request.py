"""A CreateTrainingJob request becomes a :class:`~hotfire.runtime.spec.TrainingJob`, or every reason why not.

Pure but for the service model, a data file. The rules are botocore's own traits (:mod:`hotfire.runtime.traits`) and
one table of what the service does beyond them (:mod:`hotfire.runtime.rules`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotfire.runtime import rules, service_model, spec, traits
from hotfire.runtime.documents import load_text
from hotfire.runtime.errors import UnsupportedError
from hotfire.runtime.instances import LOCAL
from hotfire.runtime.refusals import decoded, ignored, not_yet, unsupported

__all__ = ["EXTENSIONS", "decoded", "ignored", "load_text", "not_yet", "parse"]

_FILE_URI = r"file://[^\n]{1,4096}"

EXTENSIONS: traits.Extensions = {
    ("S3DataSource", "S3Uri"): _FILE_URI,
    ("OutputDataConfig", "S3OutputPath"): _FILE_URI,
    ("CheckpointConfig", "S3Uri"): _FILE_URI,
    ("ResourceConfig", "InstanceType"): LOCAL,
    ("InstanceGroup", "InstanceType"): LOCAL,
}
"""All that a request may hold here and not on the service."""


def parse(raw: Any, *, region: str, cache_dir: Path | None = None) -> spec.TrainingJob:
    """The job that ``raw`` describes, complete with defaults.

    Args:
        raw: what ``aws sagemaker create-training-job --cli-input-json`` takes, plus :data:`EXTENSIONS`.
        region: for the job's ARN and AWS_REGION.
        cache_dir: where the extract of the service model is kept.

    Raises:
        RequestInvalid: the service would refuse it; the message holds all faults in the service's form.
        UnsupportedError: the service would take it, and this program never will or cannot yet.
    """
    shapes = service_model.load(cache_dir)
    walk = traits.Walk(shapes, extensions=EXTENSIONS, private=("Environment",))
    faults = walk.check(raw)
    if isinstance(raw, Mapping):
        told = {fault.path for fault in faults}
        faults += [fault for fault in rules.faults(raw) if fault.path not in told]
    if faults:
        raise traits.RequestInvalid(faults)
    if refusals := list(unsupported(raw)):
        raise _refused(refusals)
    return _job(raw, region)


def _refused(refusals: Sequence[tuple[str, str]]) -> UnsupportedError:
    """One refusal as it is; several as a list, each with what to do about it."""
    if len(refusals) == 1:
        what, do = refusals[0]
        return UnsupportedError(what, do=do)
    lines = [f"  {what} {do}" for what, do in refusals]
    what = "\n".join([f"{len(refusals)} things cannot be had here:", *lines])
    return UnsupportedError(what, do="Correct them and run it again; nothing was started.")


def _job(raw: Mapping[str, Any], region: str) -> spec.TrainingJob:
    algorithm, stopping = raw["AlgorithmSpecification"], raw["StoppingCondition"]
    mode = spec.InputMode(algorithm["TrainingInputMode"])
    output = raw["OutputDataConfig"]
    return spec.TrainingJob(
        training_job_name=raw["TrainingJobName"],
        role_arn=raw["RoleArn"],
        region=region,
        algorithm_specification=spec.AlgorithmSpecification(
            training_image=algorithm["TrainingImage"],
            training_input_mode=mode,
            container_entrypoint=tuple(algorithm.get("ContainerEntrypoint", ())),
            container_arguments=tuple(algorithm.get("ContainerArguments", ())),
            metric_definitions=tuple(
                spec.MetricDefinition(name=metric["Name"], regex=metric["Regex"])
                for metric in algorithm.get("MetricDefinitions", ())
            ),
        ),
        output_data_config=spec.OutputDataConfig(
            s3_output_path=output["S3OutputPath"],
            compression_type=output.get("CompressionType", "GZIP"),
            kms_key_id=output.get("KmsKeyId", ""),
        ),
        resource_config=_resources(raw["ResourceConfig"]),
        hyper_parameters=dict(raw.get("HyperParameters", {})),
        input_data_config=tuple(
            _channel(channel, mode) for channel in raw.get("InputDataConfig", ())
        ),
        stopping_condition=spec.StoppingCondition(
            max_runtime_in_seconds=stopping.get("MaxRuntimeInSeconds", 86_400),
            max_wait_time_in_seconds=stopping.get("MaxWaitTimeInSeconds"),
        ),
        checkpoint_config=_checkpoints(raw.get("CheckpointConfig")),
        environment=dict(raw.get("Environment", {})),
        enable_network_isolation=raw.get("EnableNetworkIsolation", False),
        enable_managed_spot_training=raw.get("EnableManagedSpotTraining", False),
        maximum_retry_attempts=raw.get("RetryStrategy", {}).get("MaximumRetryAttempts", 0),
        request=dict(raw),
    )


def _resources(raw: Mapping[str, Any]) -> spec.ResourceConfig:
    """Hosts are numbered through the groups in the order given; on the service it is arbitrary (contract 2.4)."""
    groups = raw.get("InstanceGroups") or [
        {
            "InstanceGroupName": spec.HOMOGENEOUS_GROUP,
            "InstanceType": raw["InstanceType"],
            "InstanceCount": raw["InstanceCount"],
        }
    ]
    made = []
    first = 1
    for group in groups:
        after = first + group["InstanceCount"]
        made.append(
            spec.InstanceGroup(
                instance_group_name=group["InstanceGroupName"],
                instance_type=group["InstanceType"],
                instance_count=group["InstanceCount"],
                hosts=tuple(f"algo-{number}" for number in range(first, after)),
            )
        )
        first = after
    return spec.ResourceConfig(
        instance_groups=tuple(made), volume_size_in_gb=raw.get("VolumeSizeInGB", 30)
    )


def _channel(raw: Mapping[str, Any], job_mode: spec.InputMode) -> spec.Channel:
    source = raw["DataSource"]
    made: spec.S3DataSource | spec.FileSystemDataSource
    if system := source.get("FileSystemDataSource"):
        made = spec.FileSystemDataSource(
            file_system_id=system["FileSystemId"],
            file_system_type=system["FileSystemType"],
            file_system_access_mode=system["FileSystemAccessMode"],
            directory_path=system["DirectoryPath"],
        )
    else:
        made = _s3_source(source["S3DataSource"])
    return spec.Channel(
        channel_name=raw["ChannelName"],
        data_source=made,
        input_mode=spec.InputMode(raw.get("InputMode", job_mode)),
        content_type=raw.get("ContentType"),
        compression_type=raw.get("CompressionType", "None"),
        record_wrapper_type=raw.get("RecordWrapperType", "None"),
        shuffle_seed=raw.get("ShuffleConfig", {}).get("Seed"),
    )


def _s3_source(raw: Mapping[str, Any]) -> spec.S3DataSource:
    return spec.S3DataSource(
        s3_uri=raw["S3Uri"],
        s3_data_type=raw["S3DataType"],
        s3_data_distribution_type=spec.Distribution(
            raw.get("S3DataDistributionType", "FullyReplicated")
        ),
        attribute_names=tuple(raw.get("AttributeNames", ())),
        instance_group_names=tuple(raw.get("InstanceGroupNames", ())),
    )


def _checkpoints(raw: Mapping[str, Any] | None) -> spec.CheckpointConfig | None:
    if raw is None:
        return None
    path = raw.get("LocalPath") or spec.CheckpointConfig.local_path
    return spec.CheckpointConfig(s3_uri=raw["S3Uri"], local_path=path.rstrip("/") or "/")
