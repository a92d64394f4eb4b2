"""The events of one rank: JSON lines, written as they happen (standard library only)."""

from __future__ import annotations

import json
import os
from typing import Any


class Recorder:
    """Appends ``{"event": KIND, ...}`` lines to `path`; silent in forked children."""

    def __init__(self, path: str) -> None:
        # Line by line: a worker that is killed leaves what it has seen.
        self._file = open(path, "w", buffering=1, encoding="utf-8")  # noqa: PTH123, SIM115
        self.active = True
        os.register_at_fork(after_in_child=self.stop)

    def write(self, event: str, **facts: Any) -> None:
        if self.active:
            self._file.write(json.dumps({"event": event, **facts}, default=str) + "\n")

    def stop(self) -> None:
        """Nothing is written from here on."""
        self.active = False
