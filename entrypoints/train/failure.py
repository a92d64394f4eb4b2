"""Why the job failed, in /opt/ml/output/failure: its first 1024 characters become FailureReason (contract 5.5)."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hotfire.entrypoints.train.talk import hidden, say
from hotfire.entrypoints.train.workers import Ended, WorkerExit

LIMIT = 1024
_MESSAGE_LIMIT = 640
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')


def explain(ended: Ended, command: str, code: Path, *, out_of_memory: bool = False) -> str:
    """The reason: rank and exception, then the innermost lines of the user's code, at most :data:`LIMIT` characters."""
    first = ended.first_failure
    if first is None:
        return hidden(ended.trouble or f"torchrun exited with code {ended.agent_code}")[:LIMIT]
    if first.error is None:
        lines = [f"rank {first.rank}: {_status(first, ended, out_of_memory)}: {command}"]
    else:
        lines = [f"rank {first.rank}: {headline(first.error)}", *frames(first.error, code)]
        if first.error.get("type") in ("ModuleNotFoundError", "ImportError"):
            lines.insert(1, "(add what is missing to requirements.txt beside the script)")
    return hidden("\n".join(lines))[:LIMIT]


def headline(error: Mapping[str, Any]) -> str:
    """``ValueError: shapes differ``, or what sys.exit() was given."""
    kind, message = str(error.get("type", "")), str(error.get("message", "")).strip()
    if kind == "SystemExit" and (not message or message.lstrip("-").isdecimal()):
        return f"exited with code {error.get('exit_code')}"
    if len(message) > _MESSAGE_LIMIT:
        message = f"{message[:_MESSAGE_LIMIT]}..."
    return f"{kind}: {message}" if message else kind


def frames(error: Mapping[str, Any], code: Path) -> list[str]:
    """The innermost frame and those of files below ``code``, innermost first: ``at train.py:12 in main: loss = f(x)``."""
    lines = str(error.get("traceback_tail", "")).splitlines()
    found: list[tuple[bool, str]] = []
    for number, line in enumerate(lines):
        if line.startswith(("During handling", "The above exception")):
            found = []
        elif match := _FRAME.match(line):
            source = lines[number + 1].strip() if number + 1 < len(lines) else ""
            found.append(_frame(match, "" if _FRAME.match(f"  {source}") else source, code))
    innermost = len(found) - 1
    return [
        text for index, (own, text) in reversed(list(enumerate(found))) if own or index == innermost
    ]


def _frame(match: re.Match[str], source: str, code: Path) -> tuple[bool, str]:
    path = match["file"]
    root = f"{code}{os.sep}"
    own = path.startswith(root)
    where = f"at {path.removeprefix(root)}:{match['line']}"
    within = f" in {match['name']}" if match["name"] not in (None, "<module>") else ""
    return own, where + within + (f": {source}" if source else "")


def _status(end: WorkerExit, ended: Ended, out_of_memory: bool) -> str:
    number = end.exit_code - 128
    if number not in set(signal.Signals):
        return {126: "cannot be executed", 127: "not found"}.get(
            end.exit_code, f"exited with code {end.exit_code}"
        )
    name = signal.Signals(number).name
    if ended.stopped_by is not None:
        asked = signal.Signals(ended.stopped_by).name
        if number == signal.SIGKILL:
            return f"killed, because it did not end within its time after {asked}"
        if number == ended.stopped_by:
            return f"ended by {asked}, as the job was stopped"
    if number == signal.SIGKILL:
        return (
            "out of memory: killed by the kernel (SIGKILL)"
            if out_of_memory
            else "killed (SIGKILL), as the kernel does when memory runs out"
        )
    return f"killed by {name}"


def write(path: Path, text: str) -> bool:
    """Write the failure file unless user code has written it; False if it cannot be written, which is then said."""
    data = text[:LIMIT].encode(errors="replace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        return True
    except OSError as error:
        # Empty is worse than absent: it would hide the exit code's own explanation.
        with suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()
        say(f"{path} cannot be written: {error.strerror}")
        return False
    return True
