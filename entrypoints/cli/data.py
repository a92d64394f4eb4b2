"""``hotfire data``: what a job's input will look like, and chunks that are fast to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.group(short_help="Preview or pack input data.")
def data() -> None:
    """Input data without a job."""


@data.command(short_help="Which object goes where.")
@click.argument("document")
@click.option("--channel", "only", multiple=True, help="Only this channel; repeatable.")
@click.option("--host", "hosts", multiple=True, help="Only this host, e.g. algo-2; repeatable.")
@click.option("--epoch", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--limit", type=click.IntRange(min=0), default=20, help="Objects shown per host.")
@click.option("--map", "maps", multiple=True, metavar="s3://...=DIR", help="As for hotfire run.")
@click.option("--sample", "samples", multiple=True, metavar="CHANNEL=5%", help="Likewise.")
@click.option("--data-rule", "rules", multiple=True, metavar="NAME=VALUE", help="Likewise.")
@click.option("--input-bandwidth", default="", metavar="100MB/s", help="Likewise.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def preview(document: str, **flags: Any) -> None:
    """Show which object of DOCUMENT's channels goes to which host, in which order, and its bytes. Starts nothing."""
    import json

    from hotfire.runtime.data_preview import preview_of
    from hotfire.runtime.surroundings import Surroundings

    around = Surroundings.here()
    shown = preview_of(
        _request(document),
        around,
        only=flags["only"],
        hosts=flags["hosts"],
        epoch=flags["epoch"],
        maps=flags["maps"],
        settings=_settings(flags, around),
    )
    if flags["as_json"]:
        click.echo(json.dumps([one.to_json() for one in shown], indent=2, ensure_ascii=False))
        return
    for one in shown:
        for line in one.lines(flags["limit"]):
            click.echo(line)


def _request(document: str) -> dict[str, Any]:
    from hotfire.runtime import documents
    from hotfire.runtime.errors import ValidationError

    try:
        return documents.load_text(Path(document).read_text(encoding="utf-8"), document)
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationError(
            f"{document} cannot be read: {getattr(error, 'strerror', None) or error}.",
            do="Give a CreateTrainingJob document in JSON or YAML.",
        ) from error


def _settings(flags: dict[str, Any], around: Any) -> Any:
    from hotfire.runtime.data_settings import DataSettings

    return DataSettings.parse(
        rules=flags["rules"],
        samples=flags["samples"],
        bandwidth=flags["input_bandwidth"],
        cache_limit=around.environ.get("HOTFIRE_CACHE_LIMIT", ""),
        thorough=True,
    )


@data.command(short_help="RecordIO chunks from a folder per class.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("destination")
@click.option("--chunk", default="1GB", show_default=True, help="About the size of each chunk.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the examples' order.")
def pack(folder: Path, destination: str, chunk: str, seed: int) -> None:
    """Write the files of FOLDER, which has one folder per class, to DESTINATION (a directory or s3://) as chunks."""
    from hotfire.entrypoints.cli.show import Console
    from hotfire.runtime import packing
    from hotfire.runtime.data_settings import parse_size
    from hotfire.runtime.storage import LocalLocation, human, parse_uri

    uri = ":" in destination.partition("/")[0]
    to = parse_uri(destination) if uri else LocalLocation(Path(destination))
    size = parse_size(chunk, "--chunk")
    packed = packing.pack(
        folder, to, Console((), logs_to_stderr=True, quiet=False), chunk=size, seed=seed
    )
    click.echo(
        f"{packed.records} records of {len(packed.classes)} classes in {packed.chunks} chunks, {human(packed.bytes)}",
        err=True,
    )
