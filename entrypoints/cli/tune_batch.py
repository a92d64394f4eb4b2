"""``hotfire tune-batch``: the largest batch that fits, and the learning rate that goes with it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import click

from hotfire.entrypoints.cli.show import table
from hotfire.entrypoints.cli.trial_options import (
    Trials,
    job_of,
    trial_options,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hotfire.runtime.trials.trial import Measured

_UNITS = {"MB": 10**6, "GB": 10**9, "MiB": 1 << 20, "GiB": 1 << 30}
_AUTO = '"auto"'
_RATE, _BASE_BATCH = 5e-5, 8
"""The Hugging Face Trainer's defaults."""


@trial_options("none,xla", "A column for each.")
@click.command(short_help="Find the largest batch that fits, and its learning rate.")
@click.option(
    "--memory-limit",
    metavar="8GiB",
    help="Resident memory that a worker may take; needed on a CPU, which has no memory of its own.",
)
@click.option("--start", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--max", "ceiling", type=click.IntRange(min=1), default=4096, show_default=True)
@click.option(
    "--steps", type=click.IntRange(min=2), default=3, show_default=True, help="Steps of a trial."
)
@click.option(
    "--base-batch",
    type=click.IntRange(min=1),
    default=_BASE_BATCH,
    show_default=True,
    help="Global batch for which the job's learning_rate is right.",
)
@click.pass_context
def tune_batch(ctx: click.Context, /, **flags: Any) -> None:
    """Search the largest value of the hyperparameter that is given as `auto`, by real steps in fresh processes.

    A trial that runs out of memory does not fit, however it ends; any other failure ends the search.
    """
    from hotfire.runtime import devices
    from hotfire.runtime.surroundings import Surroundings

    around = Surroundings.here()
    raw, options = job_of(ctx, flags, around)
    name = searched(raw)
    limit = memory_size(flags["memory_limit"])
    machine = devices.machine()
    if not limit and not machine.gpus and not machine.neuron_cores:
        raise click.UsageError(
            "this machine has no accelerator whose memory could be the limit: give --memory-limit, e.g. 8GiB."
        )
    trials = Trials(options, around, verbose=flags["verbose"])
    search = Search(trials, raw, name, limit, flags)
    columns = [search.column(compiler) for compiler in flags["compilers"]]
    rate = value_of(raw, ("learning_rate", "lr"), float)
    document = {
        "Hyperparameter": name,
        "MemoryLimitBytes": limit or None,
        "BaseLearningRate": rate or _RATE,
        "BaseBatch": flags["base_batch"],
        "Columns": [scaled(column, rate or _RATE, flags["base_batch"]) for column in columns],
        "Remarks": remarks(limit, rate, columns),
    }
    if flags["as_json"]:
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(text_of(document))
    for remark in document["Remarks"]:
        click.echo(f"note: {remark}", err=True)


def searched(raw: dict[str, Any]) -> str:
    """The one hyperparameter that is `auto`."""
    values: dict[str, str] = raw.get("HyperParameters", {})
    found = [key for key, value in values.items() if value == _AUTO]
    if len(found) != 1:
        raise click.UsageError(
            "give the batch size as auto: -p per_device_train_batch_size=auto"
            if not found
            else f"only one hyperparameter can be searched, and {', '.join(found)} are auto."
        )
    return found[0]


def memory_size(text: str | None) -> int:
    """Bytes of ``8GiB``, ``1.5GB``; 0 for nothing."""
    if text is None:
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(MB|GB|MiB|GiB)", text.strip())
    if match is None or not (size := int(float(match[1]) * _UNITS[match[2]])):
        raise click.UsageError(f"--memory-limit {text}: not a size; give for example 8GiB.")
    return size


class Search:
    """Searches per compiler; every trial is kept for the curve."""

    def __init__(
        self, trials: Trials, raw: dict[str, Any], name: str, limit: int, flags: dict[str, Any]
    ) -> None:
        self._trials = trials
        self._raw = raw
        self._name = name
        self._limit = limit
        self._flags = flags

    def column(self, compiler: str) -> dict[str, Any]:
        """The largest batch under ``compiler``, and what each trial took."""
        from hotfire.runtime.trials import batch
        from hotfire.runtime.trials.trial import Trial, Verdict

        curve: list[dict[str, Any]] = []
        world = 1

        def fits(size: int) -> bool:
            nonlocal world
            trial = Trial(
                request=self._raw,
                label=f"tune-{compiler}-{size}",
                compiler=compiler,
                steps=self._flags["steps"],
                hyperparameters={self._name: size},
                memory_limit=self._limit,
            )
            measured = self._trials(trial, f"compiler {compiler}, {self._name} {size}")
            curve.append(point(size, measured))
            world = max(world, measured.world_size)
            return measured.verdict is Verdict.FITS

        largest = batch.largest(fits, self._flags["start"], self._flags["ceiling"])
        curve.sort(key=lambda one: int(one["Batch"]))
        return {
            "Compiler": compiler,
            "LargestBatch": largest,
            "Workers": world,
            "GlobalBatch": largest * world * self._accumulation,
            "LimitedBy": limited_by(largest, curve),
            "Curve": curve,
        }

    @property
    def _accumulation(self) -> int:
        return value_of(self._raw, ("gradient_accumulation_steps",), int) or 1


def point(size: int, measured: Measured) -> dict[str, Any]:
    return {
        "Batch": size,
        "Verdict": measured.verdict.value,
        "PeakHostBytes": measured.peak_host_bytes or None,
        "PeakDeviceBytes": measured.peak_device_bytes,
    }


def limited_by(largest: int, curve: list[dict[str, Any]]) -> str:
    """Why no larger batch was found: memory, the data, or --max."""
    from hotfire.runtime.trials.trial import Verdict

    beyond = [one["Verdict"] for one in curve if one["Batch"] > largest]
    if not beyond:
        return "--max"
    return "data" if beyond[0] == Verdict.DATA.value else "memory"


def scaled(column: dict[str, Any], rate: float, base_batch: int) -> dict[str, Any]:
    """``column`` with its learning rates."""
    from hotfire.runtime.trials.batch import Rates

    if not column["LargestBatch"]:
        return column
    rates = Rates(base_rate=rate, base_batch=base_batch, global_batch=column["GlobalBatch"])
    return column | {
        "LearningRate": {"Linear": rates.linear, "SquareRoot": rates.square_root},
        "WarmupRatio": rates.warmup_ratio,
    }


def remarks(limit: int, rate: float | None, columns: list[dict[str, Any]]) -> list[str]:
    said = ["linear scaling is for SGD, the square root for Adam and AdamW; try both"]
    said += [
        f"compiler {column['Compiler']}: not even a batch of 1 fits; Python, libraries and the model alone take more "
        f"than {'--memory-limit' if limit else 'the device has'}"
        for column in columns
        if not column["LargestBatch"] and column["LimitedBy"] == "memory"
    ]
    if rate is None:
        said.append(f"the job gives no learning_rate: {_RATE:g} is assumed")
    if limit:
        said.append(
            "the limit holds for each worker's resident memory on the host, Python and libraries included: "
            "it tells how memory grows with the batch, not what fits a device"
        )
    return said


def text_of(document: dict[str, Any]) -> str:
    """The curves, and a column for each compiler."""
    from hotfire.runtime.storage import human
    from hotfire.runtime.trials.trial import Verdict

    columns = document["Columns"]
    curve: list[tuple[str, ...]] = []
    for column in columns:
        for one in column["Curve"]:
            sizes = (one["PeakHostBytes"], one["PeakDeviceBytes"])
            # A trial that was ended had not yet taken all that it needed.
            more = "> " if one["Verdict"] == Verdict.MEMORY.value else ""
            shown = ["-" if size is None else f"{more}{human(size)}" for size in sizes]
            curve.append((column["Compiler"], str(one["Batch"]), *shown, one["Verdict"]))
    base = f"{document['BaseLearningRate']:g} at {document['BaseBatch']}"
    shows: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        (f"largest {document['Hyperparameter']}", lambda one: str(one["LargestBatch"])),
        ("limited by", lambda one: str(one["LimitedBy"])),
        ("workers", lambda one: str(one["Workers"])),
        ("global batch", lambda one: str(one["GlobalBatch"])),
        (f"learning rate, linear ({base})", lambda one: rate_of(one, "Linear")),
        ("learning rate, square root", lambda one: rate_of(one, "SquareRoot")),
        ("warm-up, share of the steps", lambda one: f"{one.get('WarmupRatio', '-')}"),
    ]
    heads = ("", *(f"compiler {column['Compiler']}" for column in columns))
    lines = [(title, *map(show, columns)) for title, show in shows]
    curve_heads = ("compiler", "batch", "host memory", "device memory", "")
    return f"{table(curve_heads, curve)}\n\n{table(heads, lines)}"


def rate_of(column: dict[str, Any], rule: str) -> str:
    return f"{column['LearningRate'][rule]:.3g}" if "LearningRate" in column else "-"
