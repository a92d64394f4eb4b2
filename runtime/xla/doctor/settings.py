"""How a worker is told what to collect, and where (standard library only).

``HOTFIRE_DOCTOR=20`` makes a job end about 20 optimizer steps after its start and leave its events
in ``<output data directory>/doctor``. Without it a job runs as it is, and rank 0 prints a summary.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "HOTFIRE_DOCTOR"
SUBDIRECTORY = "doctor"
# Of a summary: what happens later in a long job is counted and no longer described.
SUMMARY_MARKS = 200


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`steps` is 0 for a summary; `temporary` says that `directory` goes away with the worker."""

    steps: int
    directory: str
    rank: int
    world_size: int
    temporary: bool = False

    @property
    def summary(self) -> bool:
        return self.steps == 0

    @property
    def events(self) -> str:
        return os.path.join(self.directory, f"rank-{self.rank}.jsonl")  # noqa: PTH118

    @property
    def trace(self) -> str:
        """torch_xla writes one per host, in its first local process."""
        return os.path.join(self.directory, f"trace-{self.rank}.txt")  # noqa: PTH118

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """The settings of this worker; makes the directory.

        Raises:
            ValueError: HOTFIRE_DOCTOR is no number of steps.
        """
        text = environment.get(VARIABLE, "").strip()
        if text and not (text.isdecimal() and int(text)):
            raise ValueError(f"{VARIABLE}={text!r} is no number of steps; write for example 20")
        output = environment.get("SM_OUTPUT_DATA_DIR") if text else ""
        parent = output or environment.get("HOTFIRE_WORKER_DIR") or ""
        directory = os.path.join(parent, SUBDIRECTORY) if parent else ""  # noqa: PTH118
        if directory:
            os.makedirs(directory, exist_ok=True)  # noqa: PTH103
        return cls(
            steps=int(text or 0),
            directory=directory or tempfile.mkdtemp(prefix="hotfire-doctor-"),
            rank=int(environment.get("RANK") or 0),
            world_size=int(environment.get("WORLD_SIZE") or 1),
            temporary=not directory,
        )
