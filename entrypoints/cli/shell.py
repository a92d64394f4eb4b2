"""``hotfire shell``: look around where a job runs, or ran."""

from __future__ import annotations

import click


@click.command(short_help="A shell in a host of a job.")
@click.argument("name")
@click.option("--host", default="algo-1", show_default=True)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def shell(name: str, host: str, command: tuple[str, ...]) -> int:
    """A shell in a live host of job NAME; of a finished job, in a freshly prepared host of the same request.

    COMMAND runs instead of the shell, for example: hotfire shell NAME -- ls -R /opt/ml
    """
    from hotfire.runtime import host_shell
    from hotfire.runtime.surroundings import Surroundings

    around = Surroundings.here()
    return host_shell.shell(name, host, command, around, lambda text: click.echo(text, err=True))
