"""How values travel: JSON text in hyperparameters.json, variables and arguments for the script.

The rules are those of sagemaker-training 5.1.4, which scripts have been written against (contract 1.2, 4.2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def decode_hyperparameters(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Each value read as JSON where it is JSON, else kept as it came: ``"5"`` is 5, ``"1.10"`` is 1.1, ``"x"`` is x."""
    return {name: _decode(value) for name, value in raw.items()}


def _decode(value: Any) -> Any:
    try:
        return json.loads(value)
    except (ValueError, TypeError, RecursionError):
        return value


def environment_value(value: Any) -> str:
    """Text as it is, None as nothing, everything else as compact ASCII JSON with sorted keys: ``true``, ``[1,2]``."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def command_line_arguments(hyperparameters: Mapping[str, Any]) -> list[str]:
    """``--name value`` sorted by name, ``-n value`` for one letter.

    Values are Python's ``str``: ``true`` arrives as ``True``, null as an empty argument, an object as ``a=1,b=2``.
    """
    arguments: list[str] = []
    for name in sorted(hyperparameters):
        dashes = "--" if len(name) > 1 else "-"
        arguments += [f"{dashes}{name}" if name else "", _argument(hyperparameters[name])]
    return arguments


def _argument(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in sorted(value.items()))
    return "" if value is None else str(value)
