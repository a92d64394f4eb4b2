"""``hotfire doctor``: run a few steps of a job and say what would cost time or money elsewhere."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotfire.entrypoints.cli import run as running

if TYPE_CHECKING:
    from hotfire.runtime.xla.doctor.report import Report

FINDINGS = 4
"""Exit code of ``--strict``: the job ran, and there are findings or more graphs than budgeted."""

# Flags of `hotfire run` that make no sense for a few steps in the foreground.
_NOT_OURS = frozenset(
    [
        "detach",
        "dry_run",
        "form",
        "as_json",
        "use_spot",
        "max_wait",
        "interrupt_after",
        "spot_discount",
        "compiler",
        "compiler_debug",
    ]
)

_OURS = frozenset(["steps", "sarif", "strict", "budget", "update_budget"])


@click.command(short_help="Find what would recompile, stall or cost money on an accelerator.")
@click.option(
    "--steps",
    type=click.IntRange(min=3),
    default=20,
    show_default=True,
    help="Optimizer steps after which the epoch ends; evaluation and saving follow.",
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
@click.option("--sarif", type=click.Path(dir_okay=False), help="Write findings as SARIF there.")
@click.option("--strict", is_flag=True, help="Exit with 4 when there is an error or a warning.")
@click.option(
    "--budget",
    type=click.Path(dir_okay=False),
    help="Compare the number of graphs with this file; made if absent.",
)
@click.option("--update-budget", is_flag=True, help="Write the number of graphs to --budget.")
@click.pass_context
def doctor(ctx: click.Context, /, **flags: Any) -> int:
    """Run a few steps of TARGET with XLA on this machine's CPU and report findings.

    Takes the flags of `hotfire run`. The report goes to stdout, the job's log to stderr; checkpoints, and without
    --output the model, are thrown away. Exit code: 0 done, 1 the job failed, 2 refused, 3 stopped, 4 findings or a
    larger budget with --strict, 70 internal error.
    """
    from hotfire.runtime import service
    from hotfire.runtime.surroundings import Surroundings

    if flags["update_budget"] and not flags["budget"]:
        raise click.UsageError("--update-budget needs --budget FILE.")
    budgeted = _look_at_files(flags)
    defaults = running.run.make_context("run", [], resilient_parsing=True).params
    flags = {**defaults, **flags}
    around = Surroundings.here()
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params if name not in _OURS}
    given = {name for name, source in sources.items() if source and source.name != "DEFAULT"}
    raw = running.request_of(flags, given, around)
    if not {"name", "replace"} & given and raw["TrainingJobName"] in around.store.names():
        raw["TrainingJobName"] = service.next_name(raw["TrainingJobName"], around)
    with tempfile.TemporaryDirectory(prefix="hotfire-doctor-") as directory:
        examined = _examined(raw, flags, Path(directory))
        return _carry_out(examined, flags, around, budgeted)


def _look_at_files(flags: Mapping[str, Any]) -> int | None:
    """The graphs in ``--budget``; None where there is none. Before the run, which takes its time.

    Raises:
        click.UsageError: a file cannot be written.
        ValidationError: the budget is none.
    """
    from hotfire.runtime.errors import ValidationError
    from hotfire.runtime.xla.doctor import report as reports

    for name in ("sarif", "budget"):
        directory = Path(flags[name] or "here").absolute().parent
        if not directory.is_dir():
            raise click.UsageError(f"--{name} {flags[name]}: there is no directory {directory}.")
    try:
        return reports.stored(Path(flags["budget"])) if flags["budget"] else None
    except ValueError as error:
        raise ValidationError(f"{error}.", do="Remove it, and it is made anew.") from error


def _examined(raw: Mapping[str, Any], flags: Mapping[str, Any], scrap: Path) -> dict[str, Any]:
    """The request with the collector switched on, and with what it leaves going to ``scrap``.

    A few steps' model is worth nothing, and must not end up where the real one goes unless
    ``--output`` says so; checkpoints of the real job are never touched.
    """
    from hotfire.runtime.xla.doctor import settings

    chosen = {"HOTFIRE_COMPILER": "xla", "PJRT_DEVICE": "CPU"}
    chosen[settings.VARIABLE] = str(flags["steps"])
    request = {**raw, "Environment": {**raw.get("Environment", {}), **chosen}}
    request.pop("EnableManagedSpotTraining", None)
    stopping = request.get("StoppingCondition", {})
    request["StoppingCondition"] = {
        k: v for k, v in stopping.items() if k != "MaxWaitTimeInSeconds"
    }
    if not flags["output"]:
        request["OutputDataConfig"] = {"S3OutputPath": (scrap / "output").as_uri()}
    if config := request.get("CheckpointConfig"):
        request["CheckpointConfig"] = {**config, "S3Uri": (scrap / "checkpoints").as_uri()}
    return request


def _carry_out(
    raw: dict[str, Any], flags: Mapping[str, Any], around: Any, budgeted: int | None
) -> int:
    from hotfire.entrypoints.cli.show import Console
    from hotfire.runtime import preparation, service

    options = running.options_of(dict(flags), around)
    pending: list[Any] = []
    observe: Any = pending.append
    prepared = preparation.prepare(raw, options, around, lambda event: observe(event))
    hosts = prepared.job.resource_config.hosts
    console = observe = Console(hosts, logs_to_stderr=True, quiet=flags["quiet"])
    for event in pending:
        console(event)
    record = service.run_prepared(
        prepared, options, around, console, replace_existing=flags["replace"]
    )
    console.close()
    grown = False
    report = _report(prepared, record, around)
    code = int(service.exit_code(record))
    if code:
        # A worker that was killed says nothing itself.
        report = replace(report, error=report.error or record.failure_reason)
    elif flags["budget"]:
        report, grown = _against_budget(report, flags, budgeted)
    _show(report, flags, prepared.code.source)
    return code or (FINDINGS if flags["strict"] and (report.failing or grown) else 0)


def _report(prepared: Any, record: Any, around: Any) -> Report:
    """What the workers of all hosts left.

    Raises:
        ValidationError: nothing, since the script never imported torch_xla.
    """
    from hotfire.runtime.errors import ValidationError
    from hotfire.runtime.xla.doctor import judge, settings, timeline

    name = prepared.job.training_job_name
    job_dir = around.store.open(name)
    attempts = job_dir.attempts()
    ranks = [
        rank
        for host in prepared.job.resource_config.hosts
        for rank in timeline.read(
            job_dir.host(attempts[-1], host).ml.output_data / settings.SUBDIRECTORY
        )
    ]
    if not ranks:
        raise ValidationError(
            f"the script never imported torch_xla; {record.failure_reason or 'it ran to its end'}.",
            do=f"hotfire logs {name} shows its output. "
            "Train on torch_xla.device(), and install hotfire[xla] for --python.",
        )
    return judge.judge(sorted(ranks, key=lambda rank: rank.number), prepared.code.source)


def _show(report: Report, flags: Mapping[str, Any], source: Path | None) -> None:
    """The findings of a job that did not get through may say why it did not."""
    if flags["sarif"]:
        from hotfire.runtime.xla.doctor import sarif

        document = sarif.document(report, _below_here(source))
        Path(flags["sarif"]).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    click.echo(json.dumps(report.to_json(), indent=2) if flags["as_json"] else report.text())


def _against_budget(
    report: Report, flags: Mapping[str, Any], before: int | None
) -> tuple[Report, bool]:
    """The report with the change in words, and whether there are more graphs than before."""
    from hotfire.runtime.xla.doctor import report as reports

    if before is None or flags["update_budget"]:
        reports.store(Path(flags["budget"]), report)
    if before is None:
        return report, False
    grown = len(report.graphs) > before and not flags["update_budget"]
    return replace(report, change=reports.compared(before, report)), grown


def _below_here(source: Path | None) -> str:
    """The source directory as seen from here; empty where it is elsewhere."""
    if source is None:
        return ""
    relative = os.path.relpath(source, Path.cwd())
    return "" if relative.startswith("..") else relative


doctor.params[:0] = [param for param in running.run.params if param.name not in _NOT_OURS]
