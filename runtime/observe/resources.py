"""What a job's hosts use: peak resident memory, sampled once a second, and disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from hotfire.runtime.backend import Container

INTERVAL_SECONDS = 1.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


class PeakMemory:
    """Largest sum of resident bytes per host while the ``with`` lasts; the first sample comes early, for short jobs."""

    def __init__(self, containers: Sequence[Container]) -> None:
        self._containers = list(containers)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="hotfire-memory", daemon=True)
        self.peak: dict[str, int] = {container.host: 0 for container in containers}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        wait = INTERVAL_SECONDS / 8
        while not self._done.wait(wait):
            wait = min(INTERVAL_SECONDS, wait * 2)
            for container in self._containers:
                used = sum(resident_bytes(pid) for pid in container.pids())
                self.peak[container.host] = max(self.peak[container.host], used)


def resident_bytes(pid: int) -> int:
    """Resident memory of one process without the pages it shares with files; 0 when it has gone.

    Shared file pages (the libraries of torch) would otherwise count once per worker.
    """
    try:
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE if len(fields) > 2 else 0


def tree_bytes(root: Path) -> int:
    """Bytes allocated on disk below ``root``; other file systems and vanished files are not counted."""
    try:
        device = root.stat().st_dev
    except OSError:
        return 0
    total, pending = 0, [str(root)]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if found.st_dev == device:
                total += found.st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return total
