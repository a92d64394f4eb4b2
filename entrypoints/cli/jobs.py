"""``hotfire describe``, ``logs``, ``ps``, ``stop``, ``upload``, ``delete``: jobs that exist."""

from __future__ import annotations

import json
import sys
from typing import Any

import click


@click.command(short_help="What DescribeTrainingJob would answer.")
@click.argument("name")
@click.option(
    "--json", "as_json", is_flag=True, help="The answer as JSON (times as in the AWS CLI)."
)
def describe(name: str, as_json: bool) -> None:
    """Show job NAME."""
    from hotfire.entrypoints.cli.show import receipt
    from hotfire.runtime import description
    from hotfire.runtime.observe.metric_files import known_statistics
    from hotfire.runtime.surroundings import Surroundings

    around = Surroundings.here()
    described = description.describe(name, around)
    if as_json:
        click.echo(json.dumps(described, indent=2))
        return
    job_dir = around.store.open(name)
    # Of a job that runs: what is known until now.
    facts = {
        "resources": description.resource_summaries(name, around),
        "metric_counts": [
            one.summary() for one in known_statistics(job_dir.statistics, job_dir.points)
        ],
        **around.store.record(name).receipt,
    }
    click.echo(receipt(described, facts, description.samples_per_second(name, around)))
    for visit in described["SecondaryStatusTransitions"]:
        click.echo(f"  {visit['StartTime']}  {visit['Status']:<12} {visit['StatusMessage']}")


@click.command(short_help="Print a job's log.")
@click.argument("name")
@click.option("--host", help="Only this host, e.g. algo-2.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--attempt", type=int, help="Which attempt (default: the last).")
@click.option(
    "--json", "as_json", is_flag=True, help="A document a line: timestamp, host, attempt, message."
)
def logs(name: str, host: str | None, follow: bool, attempt: int | None, as_json: bool) -> None:
    """Print the log of job NAME, byte for byte; several hosts are told apart by a prefix."""
    from hotfire.runtime import description
    from hotfire.runtime.observe.log_times import JsonLines
    from hotfire.runtime.observe.logs import LogPrinter
    from hotfire.runtime.surroundings import Surroundings

    around = Surroundings.here()
    hosts = (host,) if host else tuple(description.hosts_of(around.store.request(name)))
    printer = LogPrinter(sys.stdout.buffer, hosts, live=sys.stdout.isatty())

    def show(event: Any) -> None:
        printer(event)
        if printer.lost is not None:
            raise printer.lost  # there is no job to run on, unlike in `hotfire run`

    begin = JsonLines(sys.stdout.buffer).begin if as_json else lambda *_: show
    description.read_logs(name, around, begin, host=host, attempt=attempt, follow=follow)


@click.command(short_help="List the jobs.")
@click.option("--json", "as_json", is_flag=True, help="TrainingJobSummaries as JSON.")
def ps(as_json: bool) -> None:
    """List all jobs, newest first, with the disk each one uses."""
    from hotfire.entrypoints.cli.show import moment, size, table
    from hotfire.runtime import description
    from hotfire.runtime.surroundings import Surroundings

    around = Surroundings.here()
    summaries = description.list_jobs(around)
    if as_json:
        click.echo(json.dumps({"TrainingJobSummaries": summaries}, indent=2))
        return
    rows: list[tuple[str, ...]] = [
        (
            summary["TrainingJobName"],
            summary["TrainingJobStatus"],
            summary["SecondaryStatus"],
            moment(summary["CreationTime"]),
            size(summary["DiskBytes"]),
        )
        for summary in summaries
    ]
    click.echo(table(("NAME", "STATUS", "SECONDARY", "CREATED", "DISK"), rows))


@click.command(short_help="Stop a running job: SIGTERM, 120 s, SIGKILL, upload.")
@click.argument("name")
def stop(name: str) -> None:
    """Ask job NAME to stop; returns at once, as StopTrainingJob does."""
    from hotfire.runtime import service
    from hotfire.runtime.surroundings import Surroundings

    service.stop(name, Surroundings.here())
    click.echo(f"{name} is asked to stop; hotfire logs -f {name} shows its end.", err=True)


@click.command(short_help="Wait for a job's end; exit as `hotfire run` would.")
@click.argument("name")
@click.option("--timeout", type=float, metavar="SECONDS", help="Give up after that time (exit 70).")
def wait(name: str, timeout: float | None) -> int:
    """Wait until job NAME has ended."""
    from hotfire.runtime import service
    from hotfire.runtime.surroundings import Surroundings

    record = service.wait(name, Surroundings.here(), timeout)
    click.echo(f"{name}: {record.secondary_status.value}", err=True)
    return int(service.exit_code(record))


@click.command(short_help="A spot interruption now.")
@click.argument("name")
@click.option(
    "--notice",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    help="Seconds between SIGTERM and SIGKILL.",
)
@click.option("--abrupt", is_flag=True, help="SIGKILL at once.")
def interrupt(name: str, notice: float, abrupt: bool) -> None:
    """Interrupt job NAME, which uses managed spot training, as if its instances were taken back."""
    from hotfire.runtime import service
    from hotfire.runtime.surroundings import Surroundings

    service.interrupt(name, Surroundings.here(), 0.0 if abrupt else notice)
    click.echo(f"{name} is being interrupted; hotfire logs -f {name} shows the restart.", err=True)


@click.command(short_help="Send the artifacts of a job whose upload failed.")
@click.argument("name")
def upload(name: str) -> None:
    """Bring the model and the output of ended job NAME to its S3OutputPath, from where an upload failed or was cut short.

    Of a large file only the parts that S3 does not have yet are sent, unless it has changed since.
    Also for a job whose supervisor was killed. The job's status does not change.
    """
    from hotfire.entrypoints.cli.show import Console
    from hotfire.runtime import service
    from hotfire.runtime.surroundings import Surroundings

    console = Console((), logs_to_stderr=True, quiet=False)
    found = service.upload(name, Surroundings.here(), console)
    console.close()
    for uri in found:
        click.echo(uri)
    if not found:
        click.echo(f"{name} has nothing left to upload.", err=True)


@click.command(short_help="Delete finished jobs; artifacts stay.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--older-than", metavar="AGE", help="All that ended longer ago, e.g. 7d, 12h, 30m.")
def delete(names: tuple[str, ...], older_than: str | None) -> None:
    """Delete the record, the logs and the /opt/ml of finished jobs; what was uploaded stays where it is.

    An upload that was cut short is given up: S3 drops the parts that have arrived.
    """
    from hotfire.entrypoints.cli.show import Console
    from hotfire.runtime import service
    from hotfire.runtime.surroundings import Surroundings

    around = Surroundings.here()
    if not names and older_than is None:
        raise click.UsageError("Give job names, or --older-than AGE.")
    old = [] if older_than is None else service.older_than(older_than, around)
    console = Console((), logs_to_stderr=True, quiet=False)
    for name in dict.fromkeys([*names, *old]):
        service.delete(name, around, console)
        click.echo(f"deleted {name}", err=True)
