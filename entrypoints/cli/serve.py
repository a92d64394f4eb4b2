"""``hotfire serve``, ``env`` and ``exec``: a SageMaker endpoint on this machine, and clients that use it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

PORT = 4599


@click.command(short_help="A SageMaker endpoint on 127.0.0.1 whose training jobs are real.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True)
@click.option(
    "--persist",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the buckets in this directory.",
)
@click.option("--region", help="Default region of clients (default: AWS_REGION, us-east-1).")
@click.option(
    "--max-jobs", type=click.IntRange(min=1), help="Jobs at once (default: one per two CPUs)."
)
@click.option(
    "--max-memory",
    type=click.FloatRange(min=1),
    metavar="GIB",
    help="Memory that the instances of jobs have together at once (default: not counted).",
)
@click.option(
    "--when-full",
    type=click.Choice(["wait", "refuse"]),
    default="wait",
    show_default=True,
    help="Further jobs are Pending in order, or end in ResourceLimitExceeded.",
)
@click.option(
    "--backend", type=click.Choice(["process", "docker"]), default="process", show_default=True
)
@click.option("--python", help="Interpreter for the jobs (default: hotfire's own).")
@click.option("--map", "maps", multiple=True, metavar="s3://...=DIR", help="As for hotfire run.")
@click.option(
    "--rules",
    type=click.Path(dir_okay=False, path_type=Path),
    help="YAML: backends and images by instance type and by TrainingImage.",
)
def serve(
    port: int,
    persist: Path | None,
    region: str | None,
    max_jobs: int | None,
    max_memory: float | None,
    when_full: str,
    backend: str,
    python: str | None,
    maps: tuple[str, ...],
    rules: Path | None,
) -> None:
    """Serve until Ctrl-C or SIGTERM; jobs that run go on, and are there when the server is started again.

    With AWS_ENDPOINT_URL_S3 set, S3 is there (MinIO, or AWS itself) and your own credentials are used for it.
    """
    from hotfire.entrypoints.http import endpoint
    from hotfire.runtime import preparation
    from hotfire.runtime.endpoint.admission import Capacity
    from hotfire.runtime.storage import Locations
    from hotfire.runtime.surroundings import Options, Surroundings

    around = Surroundings.here()
    mapped = Locations.parse(maps, around.cwd).maps
    options = Options(
        backend=backend,
        python=preparation.interpreter(python, around),
        maps=tuple(f"{source}={directory}" for source, directory in mapped.items()),
    )
    settings = endpoint.Settings(
        port=port,
        region=region or around.region,
        capacity=Capacity(
            jobs=max_jobs or max(1, (os.cpu_count() or 2) // 2),
            memory_gib=max_memory,
            wait=when_full == "wait",
        ),
        persist=persist and persist.absolute(),
        s3_url=around.environ.get("AWS_ENDPOINT_URL_S3", ""),
        options=options,
        rules=rules,
    )

    def say(text: str) -> None:
        click.echo(f"hotfire: {text}", err=True)

    endpoint.run(settings, around, say)


@click.command(short_help="Variables that point AWS clients at the endpoint.")
def env() -> None:
    """Print shell commands that point every AWS client of this shell at the running endpoint."""
    from hotfire.runtime.endpoint import clients
    from hotfire.runtime.surroundings import Surroundings

    around = Surroundings.here()
    address = clients.find(around.store.home)
    click.echo(f"unset {' '.join(clients.unset(address))}")
    for name, value in clients.variables(address, around.store.home, around.environ).items():
        click.echo(f"export {name}={shlex.quote(value)}")


@click.command(
    "exec",
    short_help="Run a command as a client of the endpoint.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(command: tuple[str, ...]) -> None:
    """Run COMMAND with the variables of `hotfire env`, and with an execution role for get_execution_role()."""
    from hotfire.entrypoints.http import execution
    from hotfire.runtime.endpoint import clients
    from hotfire.runtime.surroundings import Surroundings

    around = Surroundings.here()
    home = around.store.home
    address = clients.find(home)
    environ = clients.environment(address, home, around.environ)
    metadata = clients.directory(home) / "resource-metadata.json"
    execution.become(
        command, environ, metadata, lambda text: click.echo(f"hotfire: {text}", err=True)
    )
