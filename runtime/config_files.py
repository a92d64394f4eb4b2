"""The files below /opt/ml/input/config of one host, byte for byte as the service writes them (contract 2.2 to 2.5). Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotfire.runtime import spec
from hotfire.runtime.backend import Place
from hotfire.runtime.layout import ML_ROOT

SUBMIT_DIRECTORY = "sagemaker_submit_directory"

_ML_PATH = r"(?<![\w.\-/])/opt/ml(?![\w.\-])"


@dataclass(frozen=True, kw_only=True)
class HostView:
    """What the files of one host are made from."""

    job: spec.TrainingJob
    place: Place
    submit_directory: str | None = None
    """Where mounted code appears in the container; None leaves the hyperparameter as it was sent."""

    def relocated(self, text: str) -> str:
        """``text`` with /opt/ml replaced by where this host has it; unchanged unless the host is relocated."""
        root = self.place.ml_root
        return text if root == ML_ROOT else re.sub(_ML_PATH, lambda _: str(root), text)

    def channels(self) -> list[spec.Channel]:
        """The channels that this host's group gets (contract 3.1, InstanceGroupNames)."""
        group = self.job.resource_config.group_of(self.place.host).instance_group_name
        return [
            channel
            for channel in self.job.input_data_config
            if not isinstance(channel.data_source, spec.S3DataSource)
            or not channel.data_source.instance_group_names
            or group in channel.data_source.instance_group_names
        ]


def config(view: HostView, *, topology: bool = True) -> dict[str, str]:
    """Text by path below /opt/ml: the three files that are always there, and those that the request asks for.

    ``topology`` adds the key that resourceconfig.json has had since late 2025 (contract 2.4).
    """
    return _below_config(
        {
            "hyperparameters.json": _hyperparameters(view),
            "inputdataconfig.json": _input_data(view),
            "resourceconfig.json": _resources(view, topology),
            **_optional(view),
        }
    )


def _below_config(contents: Mapping[str, Any]) -> dict[str, str]:
    return {f"input/config/{name}": compact(content) for name, content in contents.items()}


def compact(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def _hyperparameters(view: HostView) -> dict[str, str]:
    """As sent, every value a string (contract 2.2); only the submit directory says where the code has come to."""
    values = {key: view.relocated(value) for key, value in view.job.hyper_parameters.items()}
    if view.submit_directory is not None:
        values[SUBMIT_DIRECTORY] = json.dumps(view.submit_directory, ensure_ascii=False)
    return values


def _input_data(view: HostView) -> dict[str, dict[str, str]]:
    """Contract 2.3: no URIs, no compression, no shuffle."""
    found = {}
    for channel in view.channels():
        source = channel.data_source
        kind = spec.Distribution.FULLY_REPLICATED
        if isinstance(source, spec.S3DataSource):
            kind = source.s3_data_distribution_type
        entry = {"ContentType": channel.content_type} if channel.content_type else {}
        found[channel.channel_name] = entry | {
            "TrainingInputMode": str(channel.input_mode),
            "S3DistributionType": str(kind),
            "RecordWrapperType": channel.record_wrapper_type,
        }
    return found


def _resources(view: HostView, topology: bool) -> dict[str, Any]:
    """Contract 2.4, in the service's order of keys."""
    resources = view.job.resource_config
    group = resources.group_of(view.place.host)
    content: dict[str, Any] = {
        "current_host": view.place.host,
        "current_instance_type": group.instance_type,
        "current_group_name": group.instance_group_name,
        "hosts": list(resources.hosts),
        "instance_groups": [
            {
                "instance_group_name": one.instance_group_name,
                "instance_type": one.instance_type,
                "hosts": sorted(one.hosts),
            }
            for one in resources.instance_groups
        ],
        "network_interface_name": view.place.network_interface,
    }
    return content | {"topology": None} if topology else content


def _optional(view: HostView) -> dict[str, Any]:
    """The files of contract 2.5 that exist when the request has their member."""
    request = view.job.request
    files: dict[str, Any] = {}
    if view.job.checkpoint_config:
        path = view.job.checkpoint_config.local_path
        files["checkpointconfig.json"] = {"LocalPath": view.relocated(path)}
    if hook := request.get("DebugHookConfig"):
        files["debughookconfig.json"] = {
            "S3OutputPath": hook["S3OutputPath"],
            "LocalPath": view.relocated(hook.get("LocalPath") or "/opt/ml/output/tensors"),
            "HookParameters": hook.get("HookParameters") or None,
            "CollectionConfigurations": hook.get("CollectionConfigurations") or None,
        }
    profiler = request.get("ProfilerConfig")
    if profiler and not profiler.get("DisableProfiler"):
        files["profilerconfig.json"] = profiler
    if board := request.get("TensorBoardOutputConfig"):
        files["tensorboardoutputconfig.json"] = {
            "S3OutputPath": board["S3OutputPath"],
            "LocalPath": view.relocated(board.get("LocalPath") or "/opt/ml/output/tensorboard/"),
        }
    return files


def agent_config(view: HostView) -> dict[str, str]:
    """What the service's agent left beside the documented files in 2020 to 2022 (contract 2.5)."""
    hosts = view.job.resource_config.hosts
    init: dict[str, Any] = {
        "inputMode": view.job.algorithm_specification.training_input_mode.upper(),
        "channels": {one.channel_name: _agent_channel(one) for one in view.channels()},
    }
    if checkpoints := view.job.checkpoint_config:
        init["checkpointChannel"] = {
            "name": "checkpoints",
            "outputPath": view.relocated(checkpoints.local_path),
            "allowEmpty": True,
        }
    number = int(view.place.host.rpartition("-")[2])
    init["hostConfig"] = {"clusterSize": len(hosts), "hostNumber": number}
    init["jobRunInfo"] = {"jobRunNumber": 1}
    definitions = view.job.algorithm_specification.metric_definitions
    regexes = [{"Name": one.name, "Regex": one.regex} for one in definitions]
    return _below_config(
        {
            "init-config.json": init,
            "metric-definition-regex.json": regexes,
            "upstreamoutputdataconfig.json": [],
        }
    )


def _agent_channel(channel: spec.Channel) -> dict[str, Any]:
    source = channel.data_source
    content: dict[str, Any] = {"s3DataSource": None, "fileSystemDataSource": None}
    if isinstance(source, spec.S3DataSource):
        content["s3DataSource"] = {
            "s3DataType": _upper(source.s3_data_type),
            "s3Uri": source.s3_uri,
            "s3DataDistributionType": _upper(source.s3_data_distribution_type),
            "attributeNames": list(source.attribute_names) or None,
        }
    else:
        content["fileSystemDataSource"] = {
            "fileSystemId": source.file_system_id,
            "directoryPath": source.directory_path,
        }
    seed = channel.shuffle_seed
    return content | {
        "compressionType": channel.compression_type.upper(),
        "recordWrapper": _upper(channel.record_wrapper_type),
        "shuffleConfig": None if seed is None else {"seed": seed},
        "inputMode": channel.input_mode.upper(),
        "sharded": False,
    }


def _upper(word: str) -> str:
    """``ShardedByS3Key`` -> ``SHARDED_BY_S3_KEY``, ``S3Prefix`` -> ``S3_PREFIX``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).upper()
