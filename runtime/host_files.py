"""Files of a host's directory that the runner writes and reads itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hotfire.runtime import outcome, plan
from hotfire.runtime.backend import Container


def write_files(planned: Sequence[plan.HostPlan]) -> None:
    """Lay the planned files below each host's /opt/ml, and the stand-in tools into its ``bin``."""
    for host in planned:
        directory = host.spec.dir
        for path in host.directories:
            path.mkdir(parents=True, exist_ok=True)
        for relative, text in host.files.items():
            path = directory.ml.root / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for name, text in host.executables.items():
            directory.bin.mkdir(exist_ok=True)
            path = directory.bin / name
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755)


def write_pid(container: Container, path: Path) -> None:
    """Leave the process id of a host's first process, with its start time, for ``hotfire shell``."""
    if pid := container.pid:
        path.write_text(f"{pid} {start_time(pid)}", encoding="ascii")


def start_time(pid: int) -> str:
    """When a process began, in clock ticks since boot: tells a process from a later one with the same id."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def live_pid(path: Path) -> int | None:
    """The process that :func:`write_pid` noted, if it still runs."""
    try:
        pid, _, started = path.read_text(encoding="ascii").partition(" ")
    except OSError:
        return None
    return int(pid) if pid and started and start_time(int(pid)) == started else None


def read_failure(path: Path) -> str:
    """The start of /opt/ml/output/failure, or nothing: a directory or a link there is not a failure text."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as source:
        try:
            return source.read(4 * outcome.REASON_LIMIT).decode("utf-8", "replace")
        except OSError:
            return ""
