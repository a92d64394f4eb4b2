"""What the service refuses beyond the traits of its model: one table, each rule with its source.

A rule reads the raw document, which may be wrong in any way that the traits report as well; so the readers below
answer with something empty for whatever is absent or of another type, and no fault is told twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hotfire.runtime import instances
from hotfire.runtime.traits import Fault, camel, missing, shown

Rule = Callable[[Mapping[str, Any]], Iterator[Fault]]

MAX_RUNTIME = 28 * 86_400


def faults(raw: Mapping[str, Any]) -> list[Fault]:
    """Every rule that ``raw`` breaks, in the order of the table."""
    return [fault for _, rule in RULES for fault in rule(raw)]


def mapping(holder: Any, name: str) -> Mapping[str, Any]:
    value = holder.get(name) if isinstance(holder, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def items(holder: Any, name: str) -> list[Any]:
    value = holder.get(name) if isinstance(holder, Mapping) else None
    return list(value) if isinstance(value, list | tuple) else []


def text(holder: Mapping[str, Any], name: str) -> str:
    value = holder.get(name)
    return value if isinstance(value, str) else ""


def integer(holder: Mapping[str, Any], name: str) -> int | None:
    value = holder.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def channels(raw: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each channel with its path in messages."""
    for index, channel in enumerate(items(raw, "InputDataConfig"), 1):
        if isinstance(channel, Mapping):
            yield f"inputDataConfig.{index}.member", channel


def input_mode(raw: Mapping[str, Any], channel: Mapping[str, Any]) -> str:
    """The channel's own mode, else the job's (contract 2.3)."""
    algorithm = mapping(raw, "AlgorithmSpecification")
    return text(channel, "InputMode") or text(algorithm, "TrainingInputMode")


def _fault(path: str, value: Any, constraint: str, hint: str = "") -> Fault:
    return Fault(path=path, value=shown(value), constraint=constraint, hint=hint)


def _demanded(raw: Mapping[str, Any]) -> Iterator[Fault]:
    if "ServerlessJobConfig" in raw:
        return
    hints = {
        "AlgorithmSpecification": "",
        "ResourceConfig": "",
        "StoppingCondition": 'For example "StoppingCondition": {"MaxRuntimeInSeconds": 86400}.',
    }
    for name, hint in hints.items():
        if name not in raw:
            yield missing(camel(name), hint)


def _one_algorithm(raw: Mapping[str, Any]) -> Iterator[Fault]:
    algorithm = mapping(raw, "AlgorithmSpecification")
    if not algorithm:
        return
    both = [name for name in ("TrainingImage", "AlgorithmName") if algorithm.get(name)]
    path = "algorithmSpecification"
    if len(both) == 2:
        yield _fault(
            f"{path}.algorithmName",
            algorithm["AlgorithmName"],
            "Member must be null when trainingImage is given",
            "Give TrainingImage or AlgorithmName, not both.",
        )
    elif not both:
        yield missing(f"{path}.trainingImage", "Give TrainingImage.")


def _cluster(raw: Mapping[str, Any]) -> Iterator[Fault]:
    config = raw.get("ResourceConfig")
    if not isinstance(config, Mapping):
        return
    path = "resourceConfig"
    groups = items(config, "InstanceGroups")
    if groups:
        for name in ("InstanceType", "InstanceCount"):
            if name in config:
                yield _fault(
                    f"{path}.{camel(name)}",
                    config[name],
                    "Member must be null when instanceGroups is given",
                    "Give InstanceGroups, or InstanceType with InstanceCount.",
                )
    elif "InstancePreferences" not in config:
        for name in ("InstanceType", "InstanceCount"):
            if name not in config:
                yield missing(f"{path}.{camel(name)}")
        yield from _at_least_one(config, "InstanceCount", path)
    for index, group in enumerate(groups, 1):
        if isinstance(group, Mapping):
            yield from _at_least_one(
                group, "InstanceCount", f"{path}.instanceGroups.{index}.member"
            )
    names = [text(group, "InstanceGroupName") for group in groups if isinstance(group, Mapping)]
    for name in _twice(names):
        yield _fault(f"{path}.instanceGroups", name, "Members must have unique instanceGroupName")


def _at_least_one(holder: Mapping[str, Any], name: str, path: str) -> Iterator[Fault]:
    value = integer(holder, name)
    # Below the model's own minimum of 0 the traits have told it.
    if value == 0:
        yield _fault(
            f"{path}.{camel(name)}", value, "Member must have value greater than or equal to 1"
        )


def _volume(raw: Mapping[str, Any]) -> Iterator[Fault]:
    config = mapping(raw, "ResourceConfig")
    kinds = [config, *(group for group in items(config, "InstanceGroups"))]
    names = [text(kind, "InstanceType") for kind in kinds if isinstance(kind, Mapping)]
    known = [instances.table()[name] for name in names if name in instances.table()]
    local = bool(known) and all(kind.local_storage for kind in known)
    if not local:
        yield from _at_least_one(config, "VolumeSizeInGB", "resourceConfig")
    elif config.get("VolumeKmsKeyId"):
        yield _fault(
            "resourceConfig.volumeKmsKeyId",
            config["VolumeKmsKeyId"],
            f"Member must be null for {known[0].name}, which has local storage",
        )


def _unique_channels(raw: Mapping[str, Any]) -> Iterator[Fault]:
    for name in _twice([text(channel, "ChannelName") for _, channel in channels(raw)]):
        yield _fault("inputDataConfig", name, "Members must have unique channelName")


def _channel_directory(raw: Mapping[str, Any]) -> Iterator[Fault]:
    for path, channel in channels(raw):
        if text(channel, "ChannelName") in (".", ".."):
            yield _fault(
                f"{path}.channelName",
                channel["ChannelName"],
                "Member must name a directory below /opt/ml/input/data",
            )


def _one_source(raw: Mapping[str, Any]) -> Iterator[Fault]:
    for path, channel in channels(raw):
        source = channel.get("DataSource")
        if isinstance(source, Mapping) and len(source) != 1:
            yield Fault(
                path=f"{path}.dataSource",
                value=f"of {len(source)} members" if source else "null",
                constraint="Member must have exactly one of s3DataSource, fileSystemDataSource, datasetSource",
            )


def _source_modes(raw: Mapping[str, Any]) -> Iterator[Fault]:
    for path, channel in channels(raw):
        mode = input_mode(raw, channel)
        source = mapping(channel, "DataSource")
        s3 = mapping(source, "S3DataSource")
        kind = text(s3, "S3DataType")
        where = f"{path}.dataSource.s3DataSource"
        if mode == "FastFile" and kind in ("ManifestFile", "AugmentedManifestFile"):
            yield _fault(
                f"{where}.s3DataType",
                kind,
                "Member must be S3Prefix when the input mode is FastFile",
                "Give the channel InputMode Pipe or, for ManifestFile, File.",
            )
        elif kind == "AugmentedManifestFile" and mode == "File":
            yield _fault(
                f"{path}.inputMode",
                mode,
                "Member must be Pipe when s3DataType is AugmentedManifestFile",
            )
        if kind == "AugmentedManifestFile" and not items(s3, "AttributeNames"):
            yield missing(f"{where}.attributeNames")
        elif kind in ("S3Prefix", "ManifestFile") and items(s3, "AttributeNames"):
            yield _fault(
                f"{where}.attributeNames",
                s3["AttributeNames"],
                "Member must be null unless s3DataType is AugmentedManifestFile",
            )
        if mapping(source, "FileSystemDataSource") and mode in ("Pipe", "FastFile"):
            yield _fault(
                f"{path}.inputMode", mode, "Member must be File when the data is in a file system"
            )


def _file_systems(raw: Mapping[str, Any]) -> Iterator[Fault]:
    for path, channel in channels(raw):
        system = mapping(mapping(channel, "DataSource"), "FileSystemDataSource")
        if not system:
            continue
        where = f"{path}.dataSource.fileSystemDataSource"
        if "VpcConfig" not in raw:
            yield missing("vpcConfig", "A file system is reached through a VPC: give VpcConfig.")
        directory = text(system, "DirectoryPath")
        if directory and not directory.startswith("/"):
            yield _fault(f"{where}.directoryPath", directory, "Member must begin with /")


def _channel_groups(raw: Mapping[str, Any]) -> Iterator[Fault]:
    groups = items(mapping(raw, "ResourceConfig"), "InstanceGroups")
    known = {text(group, "InstanceGroupName") for group in groups if isinstance(group, Mapping)}
    for path, channel in channels(raw):
        s3 = mapping(mapping(channel, "DataSource"), "S3DataSource")
        for name in items(s3, "InstanceGroupNames"):
            if isinstance(name, str) and name not in known:
                yield _fault(
                    f"{path}.dataSource.s3DataSource.instanceGroupNames",
                    name,
                    "Members must name instance groups of resourceConfig",
                )


def _times(raw: Mapping[str, Any]) -> Iterator[Fault]:
    condition = mapping(raw, "StoppingCondition")
    run = integer(condition, "MaxRuntimeInSeconds")
    wait = integer(condition, "MaxWaitTimeInSeconds")
    spot = raw.get("EnableManagedSpotTraining") is True
    path = "stoppingCondition.maxWaitTimeInSeconds"
    if run is not None and run > MAX_RUNTIME:
        yield _fault(
            "stoppingCondition.maxRuntimeInSeconds",
            run,
            f"Member must have value less than or equal to {MAX_RUNTIME}",
        )
    if spot and "MaxWaitTimeInSeconds" not in condition:
        yield missing(path, "Managed spot training needs MaxWaitTimeInSeconds.")
    elif wait is not None and not spot:
        yield _fault(path, wait, "Member must be null unless enableManagedSpotTraining is true")
    elif wait is not None and wait < (run or 86_400):
        yield _fault(
            path, wait, f"Member must be at least maxRuntimeInSeconds, which is {run or 86_400}"
        )


def _keep_alive(raw: Mapping[str, Any]) -> Iterator[Fault]:
    config = mapping(raw, "ResourceConfig")
    period = integer(config, "KeepAlivePeriodInSeconds")
    reasons = {
        "with managed spot training": raw.get("EnableManagedSpotTraining") is True,
        "with instanceGroups": bool(items(config, "InstanceGroups")),
    }
    for reason in (reason for reason, holds in reasons.items() if holds and period):
        yield _fault(
            "resourceConfig.keepAlivePeriodInSeconds", period, f"Member must be null {reason}"
        )


def _local_paths(raw: Mapping[str, Any]) -> Iterator[Fault]:
    for name in ("CheckpointConfig", "DebugHookConfig", "TensorBoardOutputConfig"):
        path = text(mapping(raw, name), "LocalPath")
        parts = path.split("/")
        if path and (not path.startswith("/") or ".." in parts or "\0" in path):
            yield _fault(
                f"{camel(name)}.localPath", path, "Member must be an absolute path without '..'"
            )


def _file_uris(raw: Mapping[str, Any]) -> Iterator[Fault]:
    for path, uri in uris(raw):
        if uri.startswith("file://") and not uri.startswith("file:///"):
            yield _fault(
                path,
                uri,
                "Member must be file:///absolute/path",
                "Write three slashes before an absolute path: file:///home/me/data.",
            )


def _no_nul(raw: Mapping[str, Any]) -> Iterator[Fault]:
    for name, value in mapping(raw, "Environment").items():
        if isinstance(value, str) and "\0" in value:
            yield Fault(
                path=f"environment.{name}",
                value="with a NUL character",
                constraint="Member must be a value that a process can have in its environment",
            )
    algorithm = mapping(raw, "AlgorithmSpecification")
    for name in ("ContainerEntrypoint", "ContainerArguments"):
        if any(isinstance(word, str) and "\0" in word for word in items(algorithm, name)):
            yield Fault(
                path=f"algorithmSpecification.{camel(name)}",
                value="with a NUL character",
                constraint="Members must be words that a process can be started with",
            )


def uris(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The members where hotfire takes file:// beside s3://, with their paths in messages."""
    for path, channel in channels(raw):
        s3 = mapping(mapping(channel, "DataSource"), "S3DataSource")
        yield f"{path}.dataSource.s3DataSource.s3Uri", text(s3, "S3Uri")
    yield "outputDataConfig.s3OutputPath", text(mapping(raw, "OutputDataConfig"), "S3OutputPath")
    yield "checkpointConfig.s3Uri", text(mapping(raw, "CheckpointConfig"), "S3Uri")


def _twice(names: list[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1 and name]


RULES: tuple[tuple[str, Rule], ...] = (
    ("contract 9.1: demanded for jobs that are not serverless", _demanded),
    ("contract 9.1: TrainingImage or AlgorithmName", _one_algorithm),
    ("contract 5.10, 9.1: type and count or groups; at least one instance", _cluster),
    ("contract 1.4, 9.1: VolumeSizeInGB >= 1; no VolumeKmsKeyId with local storage", _volume),
    ("contract 2.3: inputdataconfig.json is keyed by channel", _unique_channels),
    ("contract 2.1: a channel is a directory; the pattern alone allows '..'", _channel_directory),
    ("contract 3.1: one of the data sources", _one_source),
    ("contract 3.1, 3.6, 3.9: FastFile, augmented manifests, file systems", _source_modes),
    ("contract 3.1: file systems need a VPC; DirectoryPath", _file_systems),
    ("contract 3.1: InstanceGroupNames", _channel_groups),
    ("contract 5.3, 5.8: 28 days; MaxWaitTimeInSeconds", _times),
    ("contract 5.9: warm pools", _keep_alive),
    ("contract 2.5, 5.7: LocalPath is a path in the container", _local_paths),
    ("our extension: file:// beside s3://", _file_uris),
    ("POSIX: no NUL in the environment or in arguments", _no_nul),
)
