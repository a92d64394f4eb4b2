"""``hotfire bench``: the same job under several compilers, side by side."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from hotfire.entrypoints.cli.show import table
from hotfire.entrypoints.cli.trial_options import (
    BATCH_NAMES,
    Trials,
    job_of,
    trial_options,
    value_of,
)

if TYPE_CHECKING:
    from hotfire.runtime.trials.trial import Measured

_BUILT_IN_BATCH = 8


@trial_options("none,inductor,xla", "The first is what the others are compared with.")
@click.command(short_help="Compare compilers on a job: compilation, steps, memory, break-even.")
@click.option(
    "--steps", type=click.IntRange(min=3), default=20, show_default=True, help="Steps to time."
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="Runs of each."
)
@click.option(
    "--samples-per-step",
    type=click.IntRange(min=1),
    help="Over all workers (default: from the batch size among the hyperparameters).",
)
@click.pass_context
def bench(ctx: click.Context, /, **flags: Any) -> None:
    """Run TARGET for a few steps under each compiler and print what each costs and gains.

    Every run is a job of its own in fresh processes, ended after its steps; rounds alternate the order. Nothing else
    should run on the machine meanwhile.
    """
    from hotfire.runtime.surroundings import Surroundings
    from hotfire.runtime.trials import comparison
    from hotfire.runtime.trials.trial import Trial

    around = Surroundings.here()
    compilers: list[str] = flags["compilers"]
    raw, options = job_of(ctx, flags, around)
    trials = Trials(options, around, verbose=flags["verbose"])
    load = os.getloadavg()[0]
    found: list[Measured] = []
    for round_ in range(flags["rounds"]):
        first = round_ % len(compilers)
        for compiler in compilers[first:] + compilers[:first]:
            trial = Trial(
                request=raw,
                label=f"bench-{compiler}",
                compiler=compiler,
                steps=flags["steps"] + comparison.WARM_UP,
            )
            found.append(checked(trials(trial, f"round {round_ + 1}, compiler {compiler}"), trial))
    found.sort(key=lambda one: compilers.index(one.compiler))
    samples = flags["samples_per_step"] or samples_of(raw, found[0].world_size)
    rows = comparison.rows(found, samples)
    answer = comparison.document(rows, busy=load / (os.cpu_count() or 1))
    if flags["as_json"]:
        click.echo(json.dumps(answer, indent=2))
        return
    click.echo(table(comparison.HEADS, comparison.cells(rows)))
    for remark in answer["Remarks"]:
        click.echo(f"note: {remark}", err=True)
    if samples is None:
        click.echo("note: samples/s needs --samples-per-step: no batch size is given", err=True)


def checked(measured: Measured, trial: Any) -> Measured:
    """A trial of the full length.

    Raises:
        TrialFailed: it ended early.
    """
    from hotfire.runtime.trials.trial import TrialFailed, Verdict

    if measured.verdict is Verdict.FITS:
        return measured
    if measured.verdict is Verdict.MEMORY:
        raise TrialFailed(
            f"the trial with compiler {measured.compiler} ran out of memory.",
            do="Take a smaller batch: hotfire tune-batch finds the largest.",
        )
    if not measured.step_ends:
        raise TrialFailed(
            "the script ended without a step of a torch optimizer.",
            do="Not seen are steps in processes that the script starts, and of an optimizer that it compiles.",
        )
    raise TrialFailed(
        f"the script ended after {len(measured.step_ends)} of {trial.steps} steps.",
        do="Give it more data or epochs, or fewer --steps.",
    )


def samples_of(raw: dict[str, Any], world_size: int) -> int | None:
    """Samples per optimizer step over all workers, as the usual hyperparameters tell."""
    built_in = "sagemaker_program" not in raw.get("HyperParameters", {})
    batch = value_of(raw, BATCH_NAMES, int) or (_BUILT_IN_BATCH if built_in else None)
    accumulation = value_of(raw, ("gradient_accumulation_steps",), int) or 1
    return batch * accumulation * world_size if batch else None
