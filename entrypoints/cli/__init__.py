"""The ``hotfire`` command. A command is a few lines over :mod:`hotfire.runtime`; heavy packages are imported inside."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

# Command -> module and attribute: a module is imported when its command runs, or when help needs its first line.
_COMMANDS = {
    "run": ("hotfire.entrypoints.cli.run", "run"),
    "doctor": ("hotfire.entrypoints.cli.doctor", "doctor"),
    "describe": ("hotfire.entrypoints.cli.jobs", "describe"),
    "logs": ("hotfire.entrypoints.cli.jobs", "logs"),
    "metrics": ("hotfire.entrypoints.cli.metrics", "metrics"),
    "bench": ("hotfire.entrypoints.cli.bench", "bench"),
    "tune-batch": ("hotfire.entrypoints.cli.tune_batch", "tune_batch"),
    "ps": ("hotfire.entrypoints.cli.jobs", "ps"),
    "wait": ("hotfire.entrypoints.cli.jobs", "wait"),
    "interrupt": ("hotfire.entrypoints.cli.jobs", "interrupt"),
    "retry": ("hotfire.entrypoints.cli.run", "retry"),
    "stop": ("hotfire.entrypoints.cli.jobs", "stop"),
    "upload": ("hotfire.entrypoints.cli.jobs", "upload"),
    "delete": ("hotfire.entrypoints.cli.jobs", "delete"),
    "data": ("hotfire.entrypoints.cli.data", "data"),
    "cache": ("hotfire.entrypoints.cli.cache", "cache"),
    "shell": ("hotfire.entrypoints.cli.shell", "shell"),
    "images": ("hotfire.entrypoints.cli.images", "images"),
    "prune": ("hotfire.entrypoints.cli.images", "prune"),
    "serve": ("hotfire.entrypoints.cli.serve", "serve"),
    "env": ("hotfire.entrypoints.cli.serve", "env"),
    "exec": ("hotfire.entrypoints.cli.serve", "execute"),
    "setup": ("hotfire.entrypoints.cli.setup", "setup"),
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of our output has gone (`hotfire ps | head`): not worth a word, nor click's exit code 1.
            give_up_stdout()
            return 0
        return code


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="hotfire", prog_name="hotfire", message="%(prog)s %(version)s")
def hotfire() -> None:
    """Test-fire SageMaker training jobs on this machine."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; every error of ours is shown in two lines and ends with its own code."""
    from hotfire.runtime.errors import ExitCode, HotfireError

    # Closed by the caller (`>&-`): whatever is written goes nowhere, and no other file gets its number.
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    try:
        code = hotfire.main(
            args=None if arguments is None else list(arguments),
            prog_name="hotfire",
            standalone_mode=False,
        )
    except HotfireError as error:
        if len(getattr(error, "faults", ())) > 1:
            # A line each for people; the message itself keeps the service's single line.
            head = error.what.partition(": ")[0]
            lines = error.lines()  # type: ignore[attr-defined]
            complain("\n       ".join([f"{head}:", *lines]), "Nothing was started.")
        else:
            complain(error.what, error.do)
        code = error.exit_code
    except click.ClickException as error:
        # click's own usage errors; 2 is REFUSED in both vocabularies.
        error.show()
        code = ExitCode.REFUSED
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted.", "hotfire ps shows which jobs exist, and how they ended.")
        code = ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the exit code is not to be that of a failed job
        give_up_stdout()
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = error.filename or "the output"
            complain(f"{where} cannot be written: {error.strerror}.", "Make room there.")
        else:
            import traceback

            traceback.print_exc()
            complain("this is a defect of hotfire.", "Please report it with the lines above.")
        code = ExitCode.INTERNAL
    sys.exit(int(code or 0))


def give_up_stdout() -> None:
    """What is left in its buffer has nowhere to go; flushing it at the exit would hide how the command ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(what: str, do: str) -> None:
    """One error on stderr: what happened, and what to do."""
    label = click.style("error:", fg="red", bold=True)
    click.echo(f"{label} {what}", err=True, color=None)
    if do:
        click.echo(f"       {do}", err=True)
