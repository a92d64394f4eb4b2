"""Advice for the dry run and the receipt: what bites everybody, said before it bites. Pure.

Every line names its evidence. Nothing is said on suspicion: a script that cannot be read, or that takes its arguments
in a way of its own, gets no advice about them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from hotfire.runtime import instances, spec
from hotfire.runtime.layout import ML_ROOT
from hotfire.runtime.masking import is_secret
from hotfire.runtime.training_env import command_line_arguments, decode_hyperparameters

_MODEL_KEYS = ("model_dir", "model-dir", "output_dir", "output-dir", "save_dir", "save-dir")
_KEPT = tuple(ML_ROOT / name for name in ("model", "output/data", "checkpoints"))


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the caller found out; anything unknown stays empty and costs only its advice."""

    script: str | None = None
    """Text of the script."""
    whole_code: str | None = None
    """Text of all Python files of the source directory together, when that was read."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Distribution name to version in the job's interpreter: torch, transformers, ..."""
    python: str = ""
    """Version of the job's interpreter: 3.11.9."""


def advise(job: spec.TrainingJob, facts: Facts) -> list[str]:
    """One line each, most important first; empty for a job that needs none."""
    return [
        *_secrets(job),
        *_booleans(job, facts),
        *_rounded(job, facts),
        *_unread_channels(job, facts),
        *_lost_output(job, facts),
        *_versions(job, facts),
        *_many_small_hosts(job),
    ]


def _secrets(job: spec.TrainingJob) -> Iterator[str]:
    """A request is kept on disk and echoed by DescribeTrainingJob, here as on the service."""
    for name, value in job.environment.items():
        if value and is_secret(name):
            yield (
                f"Environment {name} looks like a secret and is kept with the request; "
                f"--env {name} without a value passes yours on and writes it nowhere."
            )
    for name, value in _user_values(job).items():
        if value and is_secret(name):
            yield (
                f"hyperparameter {name} looks like a secret; it is kept with the request and stands on "
                f"the script's command line. --env NAME passes a variable on and writes it nowhere."
            )


# --- arguments ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Argument:
    """One ``add_argument`` call of the script."""

    line: int
    action: str = ""
    type: str = ""
    """Name of the type, ``str`` when none is given, empty when it is no plain name."""


def arguments(script: str) -> dict[str, _Argument]:
    """The options that a script declares with ``add_argument("--name", ...)``; none if it is not Python."""
    try:
        tree = ast.parse(script)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[str, _Argument] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr != "add_argument":
            continue
        argument = _argument(node)
        for word in node.args:
            if isinstance(word, ast.Constant) and isinstance(word.value, str):
                found.setdefault(word.value.lstrip("-"), argument)
    return found


def _argument(call: ast.Call) -> _Argument:
    words = {keyword.arg: keyword.value for keyword in call.keywords}
    action = words.get("action")
    kind = words.get("type")
    return _Argument(
        line=call.lineno,
        action=str(action.value) if isinstance(action, ast.Constant) else "?" if action else "",
        type="str" if kind is None else kind.id if isinstance(kind, ast.Name) else "",
    )


def _user_values(job: spec.TrainingJob) -> dict[str, Any]:
    """The hyperparameters that become arguments of the script, decoded."""
    return {
        key: value
        for key, value in decode_hyperparameters(job.hyper_parameters).items()
        if not key.startswith("sagemaker_")
    }


def _has_toolkit(job: spec.TrainingJob) -> bool:
    return not job.algorithm_specification.container_entrypoint


def _booleans(job: spec.TrainingJob, facts: Facts) -> Iterator[str]:
    """A flag takes no value, and ``bool("False")`` is true."""
    if facts.script is None or not _has_toolkit(job):
        return
    declared = arguments(facts.script)
    for key, value in _user_values(job).items():
        argument = declared.get(key)
        if argument is None:
            continue
        sent = " ".join(command_line_arguments({key: value}))
        if argument.action in ("store_true", "store_false"):
            yield (
                f"{key}: the script gets '{sent}', but line {argument.line} declares it with "
                f"action={argument.action!r}, which takes no value; argparse will refuse it."
            )
        elif argument.type == "bool" and str(value).lower() in ("false", "0", "no"):
            yield (
                f"{key}: the script gets '{sent}', and line {argument.line} declares type=bool, "
                f"for which every non-empty text is true."
            )


def _rounded(job: spec.TrainingJob, facts: Facts) -> Iterator[str]:
    """``1.10`` is JSON for 1.1: harmless as a number, wrong as a version."""
    if not _has_toolkit(job):
        return
    declared = arguments(facts.script) if facts.script else {}
    for key, text in job.hyper_parameters.items():
        if not re.fullmatch(r"-?\d+\.\d*0", text) or text.endswith(".0"):
            continue
        argument = declared.get(key)
        as_text = argument is not None and argument.type == "str" and not argument.action
        named = argument is None and re.search(r"version|revision|branch|(?:^|_)tag(?:$|_)", key)
        if as_text or named:
            arrives = command_line_arguments(decode_hyperparameters({key: text}))[1]
            yield f"{key}: {text} arrives as {arrives}; send it as a string: -p {key}:={text}."


# --- data and results --------------------------------------------------------------------------


def _unread_channels(job: spec.TrainingJob, facts: Facts) -> Iterator[str]:
    """Only when the whole source was read and nothing in it could reach the channel in general."""
    code = facts.whole_code
    if not code or not _has_toolkit(job):
        return
    general = (
        "SM_CHANNELS",
        "SM_TRAINING_ENV",
        "SM_INPUT_DIR",
        "SM_CHANNEL_{",
        "channel_input_dirs",
    )
    if any(word in code for word in general) or re.search(
        r"/opt/ml(?:/input(?:/data)?)?/?[\"']", code
    ):
        return
    values = " ".join(job.hyper_parameters.values())
    for channel in job.input_data_config:
        name = channel.channel_name
        if name.lower() not in code.lower() and f"/data/{name}" not in values:
            yield f"channel {name}: nothing in the source mentions it (SM_CHANNEL_{name.upper()})."


def _lost_output(job: spec.TrainingJob, facts: Facts) -> Iterator[str]:
    kept = list(_KEPT)
    if job.checkpoint_config:
        kept.append(PurePosixPath(job.checkpoint_config.local_path))
    code = facts.whole_code or facts.script or ""
    if not code or "SM_MODEL_DIR" in code or str(ML_ROOT / "model") in code:
        return
    for key, value in _user_values(job).items():
        if key not in _MODEL_KEYS or not isinstance(value, str) or not value.startswith("/"):
            continue
        if not any(PurePosixPath(value).is_relative_to(path) for path in kept):
            yield (
                f"{key}: {value} is lost when the job ends; only /opt/ml/model, /opt/ml/output/data "
                f"and checkpoints are kept."
            )


# --- versions and hosts ------------------------------------------------------------------------


def _versions(job: spec.TrainingJob, facts: Facts) -> Iterator[str]:
    image = job.algorithm_specification.training_image
    differ = []
    for name, wanted in image_versions(image).items():
        here = facts.python if name == "python" else facts.versions.get(name, "")
        if here and _minor(here) != _minor(wanted):
            differ.append(f"{name} {wanted}, here {here}")
    if differ:
        yield f"the image {image.rpartition('/')[2]} has other versions: {'; '.join(differ)}."


def image_versions(image: str) -> dict[str, str]:
    """Framework versions in the name of an AWS deep-learning image, by distribution name; none for other images.

    ``.../huggingface-pytorch-training:2.1.0-transformers4.36.0-gpu-py310-...`` -> torch, transformers, python.
    """
    repository, _, tag = image.rpartition("/")[2].partition(":")
    known = re.fullmatch(
        r"(?:huggingface-)?(pytorch|tensorflow)(?:-trcomp)?-training(?:-neuronx?)?", repository
    )
    if known is None:
        return {}
    found = {}
    names = {"pytorch": "torch", "tensorflow": "tensorflow"}
    if version := re.match(r"\d+\.\d+(?:\.\d+)?", tag):
        found[names[known[1]]] = version[0]
    if version := re.search(r"transformers(\d+\.\d+(?:\.\d+)?)", tag):
        found["transformers"] = version[1]
    if version := re.search(r"-py(\d)(\d+)(?:-|$)", tag):
        found["python"] = f"{version[1]}.{version[2]}"
    return found


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _many_small_hosts(job: spec.TrainingJob) -> Iterator[str]:
    """One large host has no network between its devices; only said when a type of that very size exists."""
    for group in job.resource_config.instance_groups:
        kind = instances.table().get(group.instance_type)
        if kind is None or not kind.devices or group.instance_count < 2:
            continue
        total = kind.devices * group.instance_count
        larger = instances.sibling(kind, total)
        if larger is not None and larger.name != kind.name:
            noun = "NeuronCores" if kind.neuron_cores else "GPUs"
            yield (
                f"{group.instance_count} x {kind.name} have {total} {noun}; one {larger.name} has as many "
                f"without a network between them."
            )
