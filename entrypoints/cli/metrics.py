"""``hotfire metrics``: what MetricDefinitions took from a job's log."""

from __future__ import annotations

import json
import sys

import click


@click.command(short_help="The values of a job's metrics.")
@click.argument("name")
@click.option("--csv", "as_csv", is_flag=True, help="Every value: time, metric, host, value.")
@click.option("--json", "as_json", is_flag=True, help="Every value and the statistics as JSON.")
def metrics(name: str, as_csv: bool, as_json: bool) -> None:
    """Show the metrics of job NAME, also while it runs."""
    from hotfire.runtime import service
    from hotfire.runtime.observe import metric_files

    job_dir = service.Surroundings.here().store.open(name)
    points = metric_files.read_points(job_dir.points)
    if as_csv:
        metric_files.to_csv(points, sys.stdout)
        return
    statistics = metric_files.read_statistics(job_dir.statistics)
    if as_json:
        click.echo(json.dumps(metric_files.to_json(points, statistics), indent=2))
        return
    click.echo(metric_files.table(statistics))
