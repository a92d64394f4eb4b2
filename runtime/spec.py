"""One training job as values, with the names of CreateTrainingJob in snake case (contract 3.1, 9.1).

Only :mod:`hotfire.runtime.request` makes a :class:`TrainingJob`, so whoever holds one knows that it was validated and
that every default is filled in. ``request`` keeps the caller's own document for DescribeTrainingJob to echo.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

HOMOGENEOUS_GROUP = "homogeneousCluster"
"""Group name that resourceconfig.json carries when the request has no InstanceGroups (contract 2.4)."""


class InputMode(StrEnum):
    FILE = "File"
    PIPE = "Pipe"
    FAST_FILE = "FastFile"


class Distribution(StrEnum):
    FULLY_REPLICATED = "FullyReplicated"
    SHARDED_BY_S3_KEY = "ShardedByS3Key"


@dataclass(frozen=True, kw_only=True)
class S3DataSource:
    s3_uri: str
    """``s3://bucket/prefix`` or hotfire's extension ``file:///absolute/path``."""
    s3_data_type: str = "S3Prefix"
    s3_data_distribution_type: Distribution = Distribution.FULLY_REPLICATED
    attribute_names: tuple[str, ...] = ()
    instance_group_names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FileSystemDataSource:
    file_system_id: str
    file_system_type: str
    file_system_access_mode: str
    directory_path: str


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One input channel; ``input_mode`` is the effective one (the channel's own, else the job's)."""

    channel_name: str
    data_source: S3DataSource | FileSystemDataSource
    input_mode: InputMode = InputMode.FILE
    content_type: str | None = None
    compression_type: str = "None"
    record_wrapper_type: str = "None"
    shuffle_seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class MetricDefinition:
    name: str
    regex: str


@dataclass(frozen=True, kw_only=True)
class AlgorithmSpecification:
    training_image: str
    training_input_mode: InputMode = InputMode.FILE
    container_entrypoint: tuple[str, ...] = ()
    container_arguments: tuple[str, ...] = ()
    metric_definitions: tuple[MetricDefinition, ...] = ()


@dataclass(frozen=True, kw_only=True)
class InstanceGroup:
    instance_group_name: str
    instance_type: str
    instance_count: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ResourceConfig:
    """Always in groups: a request with InstanceType and InstanceCount is one group, ``homogeneousCluster``."""

    instance_groups: tuple[InstanceGroup, ...]
    volume_size_in_gb: int = 30

    @property
    def hosts(self) -> tuple[str, ...]:
        """All host names in the lexicographic order of resourceconfig.json: algo-1, algo-10, algo-2 (contract 2.4)."""
        return tuple(sorted(host for group in self.instance_groups for host in group.hosts))

    def group_of(self, host: str) -> InstanceGroup:
        return next(group for group in self.instance_groups if host in group.hosts)


@dataclass(frozen=True, kw_only=True)
class OutputDataConfig:
    s3_output_path: str
    compression_type: str = "GZIP"
    kms_key_id: str = ""


@dataclass(frozen=True, kw_only=True)
class StoppingCondition:
    """Seconds; defaults of contract 5.3."""

    max_runtime_in_seconds: int = 86_400
    max_wait_time_in_seconds: int | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    s3_uri: str
    local_path: str = "/opt/ml/checkpoints"


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    training_job_name: str
    role_arn: str
    region: str
    algorithm_specification: AlgorithmSpecification
    output_data_config: OutputDataConfig
    resource_config: ResourceConfig
    hyper_parameters: Mapping[str, str] = field(default_factory=dict)
    """Exactly as sent: every value is a string, those of the SDK's framework estimators JSON inside (contract 4.2)."""
    input_data_config: tuple[Channel, ...] = ()
    stopping_condition: StoppingCondition = field(default_factory=StoppingCondition)
    checkpoint_config: CheckpointConfig | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    enable_network_isolation: bool = False
    enable_managed_spot_training: bool = False
    maximum_retry_attempts: int = 0
    request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def training_job_arn(self) -> str:
        """Lower-cased, whatever the case of the name (contract 1.2)."""
        account = self.role_arn.split(":")[4]
        name = self.training_job_name.lower()
        return f"arn:aws:sagemaker:{self.region}:{account}:training-job/{name}"
