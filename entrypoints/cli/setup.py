"""``hotfire setup``: what this machine allows, and what would allow more."""

from __future__ import annotations

import click


@click.command(short_help="Check what this machine allows.")
@click.option("--json", "as_json", is_flag=True)
def setup(as_json: bool) -> None:
    """Show how hosts will be isolated here, and the commands that would enable what is missing. Changes nothing."""
    import json
    from dataclasses import asdict

    from hotfire.runtime.backends.findings import setup_report

    lines = setup_report()
    if as_json:
        click.echo(json.dumps([asdict(line) for line in lines], indent=2))
        return
    for line in lines:
        click.echo(f"{'yes' if line.works else 'no ':<4} {line.what}: {line.detail}")
        for command in line.commands:
            click.echo(f"       {command}")
