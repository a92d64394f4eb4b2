"""``hotfire metrics``: what MetricDefinitions took from a job's log, and what its hosts used."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click


@click.command(short_help="The values of a job's metrics, and what its hosts used.")
@click.argument("name")
@click.option("--csv", "as_csv", is_flag=True, help="Every value: time, metric, host, value.")
@click.option(
    "--resources", is_flag=True, help="Every sample of CPU, memory, disk, network and GPU, as CSV."
)
@click.option("--json", "as_json", is_flag=True, help="Every value and all statistics as JSON.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.png",
    help="Draw metrics and resources.",
)
@click.option(
    "--tensorboard",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the metrics as event files, a run per host.",
)
def metrics(
    name: str,
    as_csv: bool,
    resources: bool,
    as_json: bool,
    plot: Path | None,
    tensorboard: Path | None,
) -> None:
    """Show the metrics of job NAME, also while it runs."""
    from hotfire.runtime import description
    from hotfire.runtime.errors import ResourceNotFound
    from hotfire.runtime.observe import metric_files, samples
    from hotfire.runtime.surroundings import Surroundings

    if as_csv + resources + as_json > 1:
        raise click.UsageError("Choose one of --csv, --resources and --json.")
    around = Surroundings.here()
    points = metric_files.read_points(around.store.open(name).points)
    if plot is not None or tensorboard is not None:
        known = list(points)
        if tensorboard is not None and not known:
            raise ResourceNotFound(
                f"{name} has no values of metrics.",
                do=f"Define them with --metric NAME=REGEX; hotfire metrics {name} tells what matched.",
            )
        if plot is not None:
            from hotfire.runtime.observe.plot import metric_panels, png, usage_panels

            used = usage_panels(description.resource_samples(name, around))
            with writing(plot):
                plot.write_bytes(png(metric_panels(known) + used))
        if tensorboard is not None:
            from hotfire.runtime.observe.tensorboard import write_events

            with writing(tensorboard):
                write_events(known, tensorboard)
        points = iter(known)
    if as_csv:
        metric_files.to_csv(points, sys.stdout)
    elif resources:
        samples.to_csv(description.resource_samples(name, around), sys.stdout)
    elif as_json or (plot is None and tensorboard is None):
        show(name, as_json)


def show(name: str, as_json: bool) -> None:
    """A table for people, all of it for programs."""
    from hotfire.entrypoints.cli.show import usage
    from hotfire.runtime import description
    from hotfire.runtime.observe import metric_files
    from hotfire.runtime.surroundings import Surroundings

    around = Surroundings.here()
    job_dir = around.store.open(name)
    statistics = metric_files.known_statistics(job_dir.statistics, job_dir.points)
    summaries = description.resource_summaries(name, around)
    if as_json:
        answer = metric_files.to_json(metric_files.read_points(job_dir.points), statistics)
        click.echo(json.dumps({**answer, "Resources": summaries}, indent=2))
        return
    if statistics:
        click.echo(metric_files.table(statistics), nl=False)
    else:
        click.echo(f"{name} has no values of metrics (--metric NAME=REGEX defines them).", err=True)
    volume = around.store.request(name)["ResourceConfig"].get("VolumeSizeInGB", 0)
    for host, one in summaries.items():
        click.echo(f"{host}: {usage(one, volume)}")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say where the result is, or why there is none."""
    from hotfire.runtime.errors import ValidationError

    try:
        yield
    except OSError as error:
        raise ValidationError(
            f"{path} cannot be written: {error.strerror}.", do="Choose another place."
        ) from error
    click.echo(f"wrote {path}", err=True)
