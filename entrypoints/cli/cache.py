"""``hotfire cache``: objects of S3 that earlier jobs downloaded."""

from __future__ import annotations

import click


@click.group(short_help="Show or clear what was downloaded.")
def cache() -> None:
    """Objects of S3, kept between jobs below HOTFIRE_CACHE, up to HOTFIRE_CACHE_LIMIT (default 100GB)."""


@cache.command(short_help="List the objects.")
@click.option("--json", "as_json", is_flag=True)
def ls(as_json: bool) -> None:
    """List the objects in the cache, the ones used last first."""
    import json
    from datetime import UTC, datetime

    from hotfire.runtime.object_cache import ObjectCache
    from hotfire.runtime.storage import human
    from hotfire.runtime.surroundings import Surroundings

    around = Surroundings.here()
    found = sorted(ObjectCache(around.cache).entries(), key=lambda one: one.used, reverse=True)
    if as_json:
        rows = [
            {"Uri": one.uri, "Bytes": one.bytes, "Used": one.used, "InUse": one.linked}
            for one in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    for one in found:
        when = datetime.fromtimestamp(one.used, UTC).strftime("%Y-%m-%d %H:%M:%S")
        click.echo(f"{human(one.bytes):>10}  {when}  {'job' if one.linked else '   '}  {one.uri}")
    total = human(sum(one.bytes for one in found))
    click.echo(f"{len(found)} objects, {total}, in {around.cache}", err=True)


@cache.command(short_help="Remove all of it.")
def clear() -> None:
    """Remove every downloaded object. Jobs keep what they have; later ones download again."""
    from hotfire.runtime.object_cache import ObjectCache
    from hotfire.runtime.storage import human
    from hotfire.runtime.surroundings import Surroundings

    around = Surroundings.here()
    files, size = ObjectCache(around.cache).clear()
    click.echo(f"{files} files, {human(size)} removed from {around.cache}", err=True)
