"""Reads /opt/ml/input/config, and says what it assumes where a file is missing.

On SageMaker and under hotfire all files are there (contract 2.1). Somebody who starts the image by hand has perhaps
mounted only data, and then gets one host, no hyperparameters, and the directories that are there as channels.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotfire.runtime.errors import ValidationError
from hotfire.runtime.layout import MlTree

LONE_HOST = "algo-1"


@dataclass(frozen=True, kw_only=True)
class Config:
    """The contents of the three files, and a line for each assumption."""

    hyperparameters: dict[str, Any]
    resource_config: dict[str, Any]
    input_data_config: dict[str, Any]
    assumptions: tuple[str, ...] = ()


def read_config(tree: MlTree, interfaces: Callable[[], list[str]] | None = None) -> Config:
    """Read the files below ``tree``.

    Raises:
        ValidationError: a file cannot be read, is not JSON (file, line and column), or lacks what it must hold.
    """
    hyperparameters = _read(tree.hyperparameters)
    channels = _read(tree.inputdataconfig)
    resources = _read(tree.resourceconfig)
    assumed: list[str] = []
    if hyperparameters is None:
        hyperparameters = {}
        assumed.append("no hyperparameters")
    if channels is None:
        channels = _channels_on_disk(tree.data)
        assumed.append(f"channels {', '.join(channels)}" if channels else "no channels")
    if resources is None:
        resources = _lone_host((interfaces or interface_names)())
        assumed.append(f"one host, {LONE_HOST}")
    else:
        _check_hosts(tree.resourceconfig, resources)
    return Config(
        hyperparameters=hyperparameters,
        resource_config=resources,
        input_data_config=channels,
        assumptions=_lines(tree, assumed),
    )


def _lines(tree: MlTree, assumed: list[str]) -> tuple[str, ...]:
    if not assumed:
        return ()
    files = (tree.hyperparameters, tree.inputdataconfig, tree.resourceconfig)
    missing = [path.name for path in files if not path.exists()]
    verb = "is" if len(missing) == 1 else "are"
    return (f"{', '.join(missing)} {verb} not in {tree.config}: assuming {'; '.join(assumed)}",)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise ValidationError(f"{path}: not UTF-8 text at byte {error.start}.") from error
    except OSError as error:
        # SageMaker's own config directory cannot be searched by an ordinary user (contract 1.3).
        raise ValidationError(
            f"{path} cannot be read: {error.strerror}.", do="Run the container as root."
        ) from error
    try:
        value = json.loads(text)
    except ValueError as error:
        where = (
            f"line {error.lineno} column {error.colno}: {error.msg}"
            if isinstance(error, json.JSONDecodeError)
            else str(error)
        )
        raise ValidationError(f"{path} is not JSON: {where}.") from error
    if not isinstance(value, dict):
        raise ValidationError(f"{path} holds a JSON {_kind(value)} where an object belongs.")
    return value


def _kind(value: object) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


def _check_hosts(path: Path, resources: dict[str, Any]) -> None:
    hosts, current = resources.get("hosts"), resources.get("current_host")
    if not isinstance(hosts, list) or not hosts or not all(isinstance(h, str) for h in hosts):
        raise ValidationError(f"{path}: hosts must be a list of host names.")
    if current not in hosts:
        raise ValidationError(f"{path}: current_host {current!r} is not one of hosts {hosts}.")
    groups = resources.get("instance_groups") or []
    if not isinstance(groups, list) or not all(
        isinstance(group, dict)
        and isinstance(group.get("instance_group_name"), str)
        and isinstance(group.get("hosts"), list)
        for group in groups
    ):
        raise ValidationError(
            f"{path}: every member of instance_groups needs instance_group_name and hosts."
        )


def _channels_on_disk(data: Path) -> dict[str, Any]:
    try:
        names = sorted(entry.name for entry in data.iterdir() if entry.is_dir())
    except OSError:
        return {}
    common = {"S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
    return {name: {"TrainingInputMode": "File", **common} for name in names}


def _lone_host(interfaces: list[str]) -> dict[str, Any]:
    outward = [name for name in interfaces if name != "lo"]
    interface = "eth0" if "eth0" in outward or not interfaces else (outward or interfaces)[0]
    return {
        "current_host": LONE_HOST,
        "hosts": [LONE_HOST],
        "network_interface_name": interface,
    }


def interface_names() -> list[str]:
    """Names of this container's network interfaces."""
    import socket

    try:
        return [name for _index, name in socket.if_nameindex()]
    except OSError:
        return []
