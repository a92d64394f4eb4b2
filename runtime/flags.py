"""Command-line flags as shorthand for a CreateTrainingJob request: values in, the raw request out. Pure.

Whatever a flag says ends up in the request, in the form in which the SageMaker Python SDK's framework estimators send
it (contract 4.2, 4.3); :mod:`hotfire.runtime.request` then judges it like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from hotfire.runtime.errors import UnsupportedError
from hotfire.runtime.flag_source import Faults, Source, submission, uri
from hotfire.runtime.instances import LOCAL
from hotfire.runtime.traits import near

DEFAULT_ROLE = "arn:aws:iam::000000000000:role/hotfire"
DEFAULT_REGION = "us-east-1"
DEFAULT_IMAGE = "hotfire"
DEFAULT_MAX_RUN = 86_400
BUILT_IN = "text-classification"
"""Stem of the job's name when no script is given: the built-in program's."""

_NAME_LIMIT = 63


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What ``hotfire run`` was told. None and () mean "not said"; repeatable flags hold their words as typed."""

    script: str | None = None
    """Path of the program; None: the built-in one."""
    source_dir: str | None = None
    """Directory (or tar.gz, or s3://...tar.gz) that holds the script; within the repository when ``git_repo`` is set."""
    git_repo: str | None = None
    git_branch: str | None = None
    git_commit: str | None = None
    name: str | None = None
    image: str | None = None
    role: str | None = None
    region: str | None = None
    inputs: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    sharding: tuple[str, ...] = ()
    record_wrapper: tuple[str, ...] = ()
    compression: tuple[str, ...] = ()
    shuffle: tuple[str, ...] = ()
    hyperparameters: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    """``K=V`` each. Variables passed on by name are no part of a request."""
    metrics: tuple[str, ...] = ()
    """``NAME=REGEX`` each."""
    instance_type: str | None = None
    instance_count: int | None = None
    distribution: str | None = None
    compiler: str | None = None
    """``xla``, ``inductor`` or ``none``; None leaves it to the job and its devices."""
    compiler_debug: bool = False
    processes_per_host: int | None = None
    """Part of the request only for mpi (contract 4.3); else the platform's own setting."""
    output: str | None = None
    output_compression: str = "GZIP"
    """CompressionType of the artifacts: GZIP or NONE."""
    checkpoints: str | None = None
    """CheckpointConfig.S3Uri."""
    checkpoint_local_path: str | None = None
    max_run: int | None = None
    """Seconds."""
    use_spot: bool = False
    max_wait: int | None = None
    """Seconds; says nothing without managed spot training, and so asks for it."""
    network_isolation: bool = False
    entrypoint: tuple[str, ...] = ()
    """ContainerEntrypoint: then there is no toolkit, and hyperparameters are sent as typed."""
    arguments: tuple[str, ...] = ()
    """ContainerArguments."""


__all__ = ["NAMES", "Flags", "default_name", "overridden", "to_request", "uri"]

NAMES = frozenset(field.name for field in fields(Flags))


def to_request(
    flags: Flags, *, now: datetime, cwd: Path, region: str = DEFAULT_REGION
) -> dict[str, Any]:
    """The CreateTrainingJob request that ``flags`` stand for.

    Args:
        now: for the job's name; aware.
        cwd: absolute; what relative paths are below.
        region: that of the job when the flags name none.

    Raises:
        ValidationError: one or more flags make no sense; the message names each.
    """
    faults = Faults()
    name = flags.name or default_name(flags.script, now)
    request: dict[str, Any] = {
        "TrainingJobName": name,
        "RoleArn": flags.role or DEFAULT_ROLE,
        "AlgorithmSpecification": _algorithm(flags, faults),
        "InputDataConfig": _channels(flags, cwd, faults),
        "OutputDataConfig": _output(flags, cwd),
        "ResourceConfig": {
            "InstanceType": flags.instance_type or LOCAL,
            "InstanceCount": 1 if flags.instance_count is None else flags.instance_count,
            "VolumeSizeInGB": 30,
        },
        "StoppingCondition": _stopping(flags),
        "HyperParameters": _hyperparameters(flags, name, region, cwd, faults),
        "Environment": {
            **_compiler_environment(flags),
            **dict(_pairs("--env", flags.environment, faults, once=True)),
        },
    }
    if flags.checkpoints:
        request["CheckpointConfig"] = {"S3Uri": uri(flags.checkpoints, cwd)}
        if flags.checkpoint_local_path:
            request["CheckpointConfig"]["LocalPath"] = flags.checkpoint_local_path
    elif flags.checkpoint_local_path:
        faults.add("--checkpoint-local-path needs a destination.", "Add --checkpoint-s3-uri.")
    if flags.use_spot or flags.max_wait is not None:
        request["EnableManagedSpotTraining"] = True
    if flags.network_isolation:
        request["EnableNetworkIsolation"] = True
    faults.raise_any()
    return {key: value for key, value in request.items() if value not in ({}, [])}


def _output(flags: Flags, cwd: Path) -> dict[str, str]:
    config = {"S3OutputPath": uri(flags.output or "hotfire-out", cwd)}
    if flags.output_compression != "GZIP":
        config["CompressionType"] = flags.output_compression
    return config


def overridden(
    raw: Mapping[str, Any], *, name: str | None = None, source_dir: str | None = None, cwd: Path
) -> dict[str, Any]:
    """A request document with another job name, or with the source taken from a directory of this machine.

    The SDK's own note of the name, ``sagemaker_job_name``, follows.
    """
    request = dict(raw)
    values = dict(request["HyperParameters"]) if _is_mapping(request, "HyperParameters") else {}
    if name is not None:
        request["TrainingJobName"] = name
        if "sagemaker_job_name" in values:
            values["sagemaker_job_name"] = json.dumps(name)
    if source_dir is not None:
        values["sagemaker_submit_directory"] = json.dumps(uri(source_dir, cwd))
    if values:
        request["HyperParameters"] = values
    return request


def default_name(script: str | None, now: datetime) -> str:
    """``<script stem>-<UTC time>`` to the millisecond, as the SDK makes names, within the service's pattern."""
    stem = PurePosixPath(script).stem if script else BUILT_IN
    base = re.sub(r"[^a-zA-Z0-9]+", "-", stem).strip("-") or "job"
    moment = now.astimezone(UTC)
    time = f"{moment:%Y-%m-%d-%H-%M-%S}-{moment.microsecond // 1000:03d}"
    return f"{base[: _NAME_LIMIT - len(time) - 1].rstrip('-')}-{time}"


def _pairs(
    flag: str, words: Iterable[str], faults: Faults, *, once: bool = False
) -> list[tuple[str, str]]:
    """``NAME=VALUE`` words as pairs; with ``once`` a name may come only once."""
    found: list[tuple[str, str]] = []
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            # The word may be a secret without its name.
            shown = f"{flag} without '='" if flag == "--env" else f"{flag} {word!r} without '='"
            faults.add(
                f"{shown}" if not separator else f"{flag} {word!r} without a name",
                f"Write {flag} NAME=VALUE.",
            )
        elif once and name in dict(found):
            faults.add(f"{flag} {name} is given twice", f"Give each {flag} once.")
        else:
            found.append((name, value))
    return found


# --- algorithm and limits ----------------------------------------------------------------------


def _algorithm(flags: Flags, faults: Faults) -> dict[str, Any]:
    algorithm: dict[str, Any] = {
        "TrainingImage": flags.image or DEFAULT_IMAGE,
        "TrainingInputMode": "File",
    }
    if metrics := _pairs("--metric", flags.metrics, faults):
        algorithm["MetricDefinitions"] = [{"Name": name, "Regex": regex} for name, regex in metrics]
    if flags.entrypoint:
        algorithm["ContainerEntrypoint"] = list(flags.entrypoint)
    if flags.arguments:
        algorithm["ContainerArguments"] = list(flags.arguments)
    return algorithm


def _stopping(flags: Flags) -> dict[str, int]:
    condition = {"MaxRuntimeInSeconds": DEFAULT_MAX_RUN if flags.max_run is None else flags.max_run}
    if flags.max_wait is not None:
        condition["MaxWaitTimeInSeconds"] = flags.max_wait
    return condition


# --- channels ----------------------------------------------------------------------------------


def _channels(flags: Flags, cwd: Path, faults: Faults) -> list[dict[str, Any]]:
    channels: dict[str, dict[str, Any]] = {}
    for name, where in _pairs("--input", flags.inputs, faults, once=True):
        if not where:
            faults.add(f"--input {name}= names no data", "Give a path or s3://bucket/prefix.")
        channels[name] = {
            "ChannelName": name,
            "DataSource": {
                "S3DataSource": {
                    "S3DataType": "S3Prefix",
                    "S3Uri": uri(where, cwd),
                    "S3DataDistributionType": "FullyReplicated",
                }
            },
        }
    for flag, words, member in (
        ("--input-mode", flags.input_modes, "InputMode"),
        ("--record-wrapper", flags.record_wrapper, "RecordWrapperType"),
        ("--compression", flags.compression, "CompressionType"),
    ):
        for name, value in _of_channels(flag, words, channels, faults):
            channels[name][member] = value
    for name, value in _of_channels("--sharding", flags.sharding, channels, faults):
        source = channels[name]["DataSource"]["S3DataSource"]
        source["S3DataDistributionType"] = value
    for name, value in _of_channels("--shuffle", flags.shuffle, channels, faults):
        if re.fullmatch(r"[+-]?[0-9]{1,19}", value):
            channels[name]["ShuffleConfig"] = {"Seed": int(value)}
        else:
            faults.add(f"--shuffle {name}={value} is not an integer", "Give a seed, e.g. 59.")
    return list(channels.values())


def _of_channels(
    flag: str, words: Iterable[str], channels: Mapping[str, Any], faults: Faults
) -> list[tuple[str, str]]:
    """The pairs of one flag whose channel exists."""
    good = []
    for name, value in _pairs(flag, words, faults, once=True):
        if name in channels:
            good.append((name, value))
            continue
        close = near(name, list(channels))
        faults.add(
            f"{flag} {name}={value}: there is no --input {name}",
            f"Did you mean {' or '.join(close)}?" if close else f"Add --input {name}=PATH.",
        )
    return good


# --- hyperparameters ---------------------------------------------------------------------------


def _hyperparameters(
    flags: Flags, name: str, region: str, cwd: Path, faults: Faults
) -> dict[str, str]:
    values: dict[str, str] = {}
    toolkit = not flags.entrypoint and not flags.arguments
    for word in flags.hyperparameters:
        key, value = _hyperparameter(word, faults, toolkit)
        if key in values:
            faults.add(f"-p {key} is given twice", "Give each hyperparameter once.")
        values[key] = value
    if toolkit:
        for key, sent in {
            **_distribution(flags, faults),
            **_compiler_config(flags),
            **submission(
                Source(
                    script=flags.script,
                    directory=flags.source_dir,
                    git_repo=flags.git_repo,
                    git_revision=flags.git_commit or flags.git_branch,
                ),
                cwd,
                faults,
            ),
            "sagemaker_container_log_level": 20,
            "sagemaker_job_name": name,
            "sagemaker_region": flags.region or region,
        }.items():
            values.setdefault(key, json.dumps(sent))
    elif flags.script or flags.distribution or flags.compiler:
        faults.add(
            "a script, --distribution or --compiler cannot go with an entry point of its own",
            "Give either; an entry point is started as it stands.",
        )
    values.pop("", None)
    return values


def _hyperparameter(word: str, faults: Faults, toolkit: bool) -> tuple[str, str]:
    """``k=v``: JSON as it stands, else as a JSON string; ``k:=text``: always a string (decisions, "Request")."""
    key, separator, value = word.partition("=")
    forced = key.endswith(":")
    key = key.removesuffix(":")
    if not separator or not key:
        faults.add(
            f"-p {word!r} is not KEY=VALUE", "Write -p KEY=VALUE, or -p KEY:=TEXT for a string."
        )
        return "", ""
    if not toolkit or (not forced and _is_json(value)):
        return key, value
    return key, json.dumps(value, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> Any:
    # NaN and Infinity are no JSON, whatever Python's reader thinks.
    raise ValueError(name)


_DISTRIBUTIONS: Mapping[str, Mapping[str, Any]] = {
    "torch_distributed": {"sagemaker_torch_distributed_enabled": True},
    "mpi": {"sagemaker_mpi_enabled": True, "sagemaker_mpi_custom_mpi_options": ""},
    "pytorchxla": {
        "sagemaker_pytorch_xla_multi_worker_enabled": True,
        # The SDK refuses pytorchxla without a compiler configuration.
        "sagemaker_training_compiler_enabled": "true",
        "sagemaker_training_compiler_debug_mode": "false",
    },
    "pytorchddp": {"sagemaker_pytorch_ddp_enabled": True},
    "parameter_server": {"sagemaker_parameter_server_enabled": True},
    "multi_worker_mirrored_strategy": {"sagemaker_multi_worker_mirrored_strategy_enabled": True},
    "smdistributed.dataparallel": {
        "sagemaker_distributed_dataparallel_enabled": True,
        "sagemaker_distributed_dataparallel_custom_mpi_options": "",
    },
    "smdistributed.modelparallel": {
        "mp_parameters": {},
        "sagemaker_distributed_dataparallel_enabled": False,
    },
}
"""What the SDK sends for ``distribution=`` (contract 4.3); what is not carried out, ``request`` refuses by name."""

_WITH_TYPE = (
    "torch_distributed",
    "pytorchddp",
    "smdistributed.dataparallel",
    "smdistributed.modelparallel",
)


def _distribution(flags: Flags, faults: Faults) -> dict[str, Any]:
    kind = flags.distribution
    if not kind:
        return {}
    if kind == "smdistributed":
        raise UnsupportedError(
            "--distribution smdistributed exists only in SageMaker's images.",
            do="Use --distribution torch_distributed.",
        )
    if kind not in _DISTRIBUTIONS:
        close = near(kind, list(_DISTRIBUTIONS))
        faults.add(
            f"--distribution {kind} is unknown",
            f"Did you mean {close[0]}?" if close else f"Known: {', '.join(_DISTRIBUTIONS)}.",
        )
        return {}
    sent = dict(_DISTRIBUTIONS[kind])
    if kind in _WITH_TYPE:
        sent["sagemaker_instance_type"] = flags.instance_type or LOCAL
    if kind == "mpi" and flags.processes_per_host:
        sent["sagemaker_mpi_num_of_processes_per_host"] = flags.processes_per_host
    return sent


def _compiler_config(flags: Flags) -> dict[str, str]:
    """What the SDK's ``TrainingCompilerConfig`` sends: texts, where distributions are booleans (contract 4.3)."""
    if flags.compiler != "xla":
        return {}
    return {
        "sagemaker_training_compiler_enabled": "true",
        "sagemaker_training_compiler_debug_mode": str(flags.compiler_debug).lower(),
    }


def _compiler_environment(flags: Flags) -> dict[str, str]:
    """The choices that no hyperparameter of the service stands for; ``train`` reads them."""
    sent = {}
    if flags.compiler in ("inductor", "none"):
        sent["HOTFIRE_COMPILER"] = flags.compiler
    if flags.compiler_debug and flags.compiler != "xla":
        sent["HOTFIRE_COMPILER_DEBUG"] = "1"
    return sent


def _is_mapping(holder: Mapping[str, Any], name: str) -> bool:
    return isinstance(holder.get(name), Mapping)
