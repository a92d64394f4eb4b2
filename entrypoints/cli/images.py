"""``hotfire images build``, ``hotfire images push`` and ``hotfire prune``."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.group(short_help="Build hotfire's images; push an image to ECR.")
def images() -> None:
    """Images of training containers: hotfire's own, and the way to SageMaker."""


@images.command(short_help="Build hotfire-gpu or hotfire-neuron.")
@click.argument("family", type=click.Choice(["gpu", "neuron"]))
@click.option(
    "--profile", default="", help="gpu-2.8, gpu-inductor, or neuron-2.29 for older drivers."
)
@click.option("--base-image", default="", help="Instead of ubuntu:24.04, best by digest.")
@click.option("--efa", is_flag=True, help="With EFA, for several Trainium nodes.")
@click.option("--tag", default="", help="The image's name (default: hotfire-FAMILY).")
@click.option("--build-arg", "arguments", multiple=True, metavar="NAME=VALUE")
@click.option("--ca-file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--host-network", is_flag=True, help="Build steps use this machine's network.")
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    help="hotfire's source tree (default: here).",
)
def build(
    family: str,
    profile: str,
    base_image: str,
    efa: bool,
    tag: str,
    arguments: tuple[str, ...],
    ca_file: Path | None,
    host_network: bool,
    source: Path,
) -> None:
    """Build the image FAMILY: docker build with its labels and checks; the name is printed."""
    from importlib.metadata import PackageNotFoundError, version

    from hotfire.containers import images as building

    pairs = (word.partition("=") for word in arguments)
    try:
        own = version("hotfire")
    except PackageNotFoundError:
        own = "0"
    wanted = building.Build(
        family=family,
        source=source.absolute(),
        profile=profile,
        base_image=base_image,
        efa=efa,
        tag=tag,
        arguments={name: value for name, _, value in pairs},
        ca=ca_file,
        host_network=host_network,
    )
    click.echo(building.run(wanted, version=own, environ=os.environ))


@images.command(short_help="Push an image to ECR and print its digest URI.")
@click.argument("image")
@click.option("--repository", required=True, help="Created if there is none, e.g. my/neuron.")
@click.option("--region", help="Region of the repository (default: your AWS configuration's).")
@click.option("--tag", default="latest", show_default=True)
@click.option("--endpoint-url", help="Of the ECR API, where it is not AWS's.")
@click.option("--through", default="", metavar="HOST:PORT", help="Push to this registry instead.")
def push(
    image: str,
    repository: str,
    region: str | None,
    tag: str,
    endpoint_url: str | None,
    through: str,
) -> None:
    """Push IMAGE; the digest URI on stdout is what to write into TrainingImage."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    from hotfire.containers import registry
    from hotfire.containers.engine import connect
    from hotfire.runtime.errors import DataError

    engine = connect(os.environ)
    try:
        client = boto3.client("ecr", region_name=region, endpoint_url=endpoint_url)
        pushed = registry.push_to_ecr(
            engine,
            client,
            image,
            repository,
            tag,
            progress=lambda line: click.echo(line, err=True),
            through=through,
        )
    except (BotoCoreError, ClientError) as error:
        raise DataError(
            f"ECR refused: {error}",
            do="Check your AWS credentials, --region, and the rights of docs/sagemaker.md.",
        ) from error
    finally:
        engine.close()
    click.echo(pushed.uri)


@click.command(short_help="Remove what a crashed run left on the container engine.")
@click.option("--dry-run", is_flag=True, help="List it and remove nothing.")
@click.option(
    "--all", "everything", is_flag=True, help="Also what another container's hotfire may be using."
)
def prune(dry_run: bool, everything: bool) -> None:
    """Remove containers, networks and volumes of jobs whose supervisor is gone."""
    from hotfire.runtime.backends import docker_orphans
    from hotfire.runtime.events import Event, Note

    def say(event: Event) -> None:
        if isinstance(event, Note):
            click.echo(event.text, err=True)

    found = docker_orphans.find(os.environ)
    chosen = [one for one in found if one.sure or everything]
    for one in found:
        verb = "would remove" if dry_run else "removing"
        if one not in chosen:
            verb = "leaving (perhaps in use; --all removes it)"
        click.echo(f"{verb} {one.kind} {one.name} of job {one.job}", err=True)
    if not dry_run:
        docker_orphans.remove(chosen, os.environ, say)
    if not found:
        click.echo("nothing to prune", err=True)
