"""What a valid request may ask for and will not get here: refused by name, or listed as having no meaning on the ground.

Nothing of a request is dropped in silence: a feature is carried out, or it is in one of these three tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hotfire.runtime import spec
from hotfire.runtime.errors import UnsupportedError


def unsupported(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What happened and what to do, for each feature that is refused rather than approximated."""
    if "ServerlessJobConfig" in raw:
        yield (
            "ServerlessJobConfig: serverless jobs run only on SageMaker.",
            "Remove ServerlessJobConfig and name a training image.",
        )
        return  # such a request may lack everything that the rest looks at
    algorithm = raw["AlgorithmSpecification"]
    if name := algorithm.get("AlgorithmName"):
        yield (
            f"AlgorithmName {name}: which image that is, only SageMaker knows.",
            "Give the algorithm's image as TrainingImage, with --backend docker; or give a script.",
        )
    for member in ("InstancePreferences", "SelectedInstanceType", "SelectedInstanceCount"):
        if member in raw["ResourceConfig"]:
            yield (
                f"ResourceConfig.{member}: there is no capacity to choose from here.",
                "Give InstanceType and InstanceCount.",
            )
    for channel in raw.get("InputDataConfig", ()):
        yield from _source(channel)
    # Only the training toolkit and `train` give these keys a meaning.
    if not algorithm.get("ContainerEntrypoint"):
        yield from _distribution(raw)


def check_without_image(job: spec.TrainingJob) -> None:
    """For hosts that are processes, in which ``train`` runs in the image's place.

    Raises:
        UnsupportedError: the job is meant for the entry point that only its image has.
    """
    algorithm = job.algorithm_specification
    if algorithm.container_arguments and not algorithm.container_entrypoint:
        raise UnsupportedError(
            "ContainerArguments without ContainerEntrypoint are for the image's own ENTRYPOINT, and no image runs here.",
            do="Use --backend docker, or give ContainerEntrypoint as well.",
        )


def _source(channel: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name, source = channel["ChannelName"], channel["DataSource"]
    if "DatasetSource" in source:
        yield (
            f"Channel {name}: DatasetSource is a data set of SageMaker's hub.",
            "Give S3DataSource.",
        )
    s3 = source.get("S3DataSource", {})
    if s3.get("S3DataType") == "Converse":
        yield (
            f"Channel {name}: S3DataType Converse belongs to serverless fine-tuning.",
            "Give S3Prefix.",
        )
    if "HubAccessConfig" in s3 or "ModelAccessConfig" in s3:
        yield (
            f"Channel {name}: models of SageMaker's hub cannot be fetched here.",
            "Give the S3Uri of a bucket of yours.",
        )


def _distribution(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    values = {key: decoded(value) for key, value in raw.get("HyperParameters", {}).items()}

    def on(key: str) -> bool:
        return str(values.get(key, "")).lower() in ("true", "1")

    torch = "Use --distribution torch_distributed (sagemaker_torch_distributed_enabled)."
    image = raw["AlgorithmSpecification"].get("TrainingImage", "")
    if "mp_parameters" in values:
        yield (
            "mp_parameters: smdistributed model parallel exists only in SageMaker's images.",
            torch,
        )
    elif on("sagemaker_distributed_dataparallel_enabled"):
        yield (
            "sagemaker_distributed_dataparallel_enabled: smdistributed data parallel exists only in SageMaker's images.",
            torch,
        )
    if on("sagemaker_pytorch_ddp_enabled"):
        yield (
            "sagemaker_pytorch_ddp_enabled: pytorchddp starts workers through smdistributed.",
            torch,
        )
    for key in (
        "sagemaker_parameter_server_enabled",
        "sagemaker_multi_worker_mirrored_strategy_enabled",
    ):
        if on(key):
            yield f"{key}: TensorFlow's distribution strategies are not run here.", torch
    if on("sagemaker_training_compiler_enabled") and "tensorflow" in image.rpartition("/")[2]:
        yield (
            "sagemaker_training_compiler_enabled with a TensorFlow image: only PyTorch jobs are compiled here.",
            "Take a PyTorch image, or remove the compiler's hyperparameters.",
        )


def decoded(value: str) -> Any:
    """One hyperparameter as the toolkit reads it: JSON, else the text itself (contract 4.2)."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def not_yet(job: spec.TrainingJob) -> list[str]:
    """Features that are accepted by :func:`parse` and not carried out yet: one line each, to be raised, not printed.

    A later change that brings a feature removes its line here.
    """
    refusals = []
    if str(decoded(job.hyper_parameters.get("sagemaker_mpi_enabled", ""))).lower() == "true":
        refusals.append(
            "sagemaker_mpi_enabled: starting workers with mpirun is not available yet; "
            "use torch_distributed."
        )
    return refusals


_IGNORED: Mapping[str, str] = {
    "RoleArn": "no role is assumed",
    "Tags": "kept in the request only",
    "VpcConfig": "there is no VPC here",
    "ResourceConfig.VolumeSizeInGB": "the job uses this machine's disk",
    "ResourceConfig.VolumeKmsKeyId": "volumes are not encrypted here",
    "ResourceConfig.KeepAlivePeriodInSeconds": "there is no warm pool here",
    "ResourceConfig.TrainingPlanArn": "there is no capacity to reserve here",
    "ResourceConfig.InstancePlacementConfig": "there are no instances to place",
    "OutputDataConfig.KmsKeyId": "artifacts are not encrypted here",
    "StoppingCondition.MaxPendingTimeInSeconds": "there is no capacity to wait for",
    "EnableInterContainerTrafficEncryption": "hosts share this machine",
    "AlgorithmSpecification.TrainingImageConfig": "no image is pulled",
    "DebugHookConfig": "the file is written, nothing is uploaded",
    "DebugRuleConfigurations": "no rule is evaluated",
    "TensorBoardOutputConfig": "the file is written, nothing is uploaded",
    "ExperimentConfig": "there is no experiment tracking here",
    "ProfilerConfig": "the file is written, nothing is profiled",
    "ProfilerRuleConfigurations": "no rule is evaluated",
    "RemoteDebugConfig": "use hotfire shell",
    "InfraCheckConfig": "there is no cluster to check",
    "SessionChainingConfig": "no role is assumed",
    "MlflowConfig": "there is no tracking server here",
    "ModelPackageConfig": "no model package is registered",
}


def ignored(job: spec.TrainingJob) -> list[str]:
    """Members of the request that have no meaning here, with the reason: ``VpcConfig: there is no VPC here``."""
    lines = []
    for name, reason in _IGNORED.items():
        holder: Any = job.request
        *outer, last = name.split(".")
        for part in outer:
            holder = holder.get(part, {})
        if holder.get(last) not in (None, "", [], {}, False):
            lines.append(f"{name}: {reason}")
    for channel in job.input_data_config:
        if channel.input_mode is spec.InputMode.PIPE:
            continue
        for member, value in (
            ("CompressionType", channel.compression_type),
            ("RecordWrapperType", channel.record_wrapper_type),
        ):
            if value != "None":
                lines.append(
                    f"Channel {channel.channel_name}: {member} {value} acts only in Pipe mode"
                )
    return lines
