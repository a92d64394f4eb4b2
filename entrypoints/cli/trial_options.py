"""What ``bench`` and ``tune-batch`` share: the job's own flags, taken from ``run``, and its trials."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from hotfire.entrypoints.cli.run import options_of, request_of, run

if TYPE_CHECKING:
    from hotfire.runtime.surroundings import Options, Surroundings
    from hotfire.runtime.trials.trial import Measured, Trial

# Flags of `run` about the job itself; the rest is about how one is watched, stored, priced or rehearsed.
_JOB = frozenset(
    [
        "target",
        "source_dir",
        "git_repo",
        "git_branch",
        "git_commit",
        "inputs",
        "input_modes",
        "sharding",
        "record_wrapper",
        "compression",
        "shuffle",
        "samples",
        "hyperparameters",
        "env",
        "instance_type",
        "instance_count",
        "distribution",
        "processes_per_host",
        "maps",
        "backend",
        "image",
        "shm_size",
        "network",
        "python",
    ]
)
BATCH_NAMES = ("per_device_train_batch_size", "train_batch_size", "batch_size")
COMPILERS = ("none", "inductor", "xla")


def trial_options(compilers: str, what: str) -> Callable[[click.Command], click.Command]:
    """Gives a command the flags of ``run`` that describe a job, before its own, and behind them those of all trials.

    ``--compilers`` has the default ``compilers`` and the help ``what``, and arrives as a list.
    """
    common = [
        click.Option(
            ["--compilers"],
            default=compilers,
            show_default=True,
            metavar="NAME,...",
            help=what,
            callback=lambda ctx, param, value: compilers_of(value),
        ),
        click.Option(["--verbose"], is_flag=True, help="Show the trials' own output on stderr."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON on stdout."),
    ]

    def add(command: click.Command) -> click.Command:
        job = [one for one in run.params if one.name in _JOB]
        command.params = [*job, *command.params, *common]
        return command

    return add


def job_of(
    ctx: click.Context, flags: dict[str, Any], around: Surroundings
) -> tuple[dict[str, Any], Options]:
    """The request and the machine's part of it that the flags stand for."""
    # As if `run` had been called with the job's flags alone.
    values: dict[str, Any] = dict(run.make_context("run", []).params)
    job = {name: flags[name] for name in _JOB if name in flags}
    given = {
        name
        for name in job
        if (source := ctx.get_parameter_source(name)) and source.name != "DEFAULT"
    }
    values |= job
    return request_of(values, given, around), options_of(values, around)


def compilers_of(text: str) -> list[str]:
    """The compilers of ``none,xla``, each once."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in COMPILERS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(COMPILERS)}.")
    if not names:
        raise click.BadParameter("name at least one compiler.")
    return list(dict.fromkeys(names))


class Trials:
    """Runs trials one after the other and says how far they are."""

    def __init__(self, options: Options, around: Surroundings, *, verbose: bool) -> None:
        self._options = options
        self._around = around
        self._verbose = verbose
        self._notes: set[str] = set()

    def __call__(self, trial: Trial, what: str) -> Measured:
        from hotfire.runtime.status import utc_now
        from hotfire.runtime.trials import trial as trials

        began = time.monotonic()
        click.echo(f"{what} ...", err=True)
        measured = trials.run(trial, self._options, self._around, self._observe, utc_now())
        seconds = time.monotonic() - began
        click.echo(f"{what}: {measured.verdict.value}, {seconds:.0f} s", err=True)
        return measured

    def _observe(self, event: Any) -> None:
        from hotfire.runtime.events import LogChunk, Note

        if isinstance(event, LogChunk) and self._verbose:
            sys.stderr.buffer.write(event.data)
            sys.stderr.buffer.flush()
        elif isinstance(event, Note) and event.text not in self._notes:
            self._notes.add(event.text)
            click.echo(f"note: {event.text}", err=True)


def value_of(raw: dict[str, Any], names: tuple[str, ...], convert: Callable[[Any], Any]) -> Any:
    """The first hyperparameter among ``names`` as ``convert`` takes it; None where there is none."""
    from hotfire.runtime.request import decoded

    for name in names:
        for spelled in (name, name.replace("_", "-")):
            if spelled in raw.get("HyperParameters", {}):
                try:
                    return convert(decoded(raw["HyperParameters"][spelled]))
                except (TypeError, ValueError):
                    return None
    return None
