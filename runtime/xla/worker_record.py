"""A worker's own account of itself, for the process that started it (standard library only).

torchrun answers 1 whatever its workers did, so each worker says for itself who it is and how it
ended: in the directory named by HOTFIRE_WORKER_DIR it writes ``rank-<RANK>.json`` at its start and
``rank-<RANK>.error.json`` when an exception ends it. Both appear whole or not at all.
"""

# pathlib would be half of what a trivial script pays for this module.
# ruff: noqa: PTH103, PTH105, PTH108, PTH118, PTH123, SIM105

from __future__ import annotations

import os
from collections.abc import Mapping

DIRECTORY_VARIABLE = "HOTFIRE_WORKER_DIR"
TRACEBACK_LIMIT = 8_000
MESSAGE_LIMIT = 4_000


class WorkerRecord:
    """The record of one rank in `directory`; does nothing when there is no directory."""

    def __init__(self, directory: str | None, *, rank: int, local_rank: int) -> None:
        self._directory = directory
        self._rank = rank
        self._local_rank = local_rank

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> WorkerRecord:
        """The record that the launcher asked for; ranks are torchrun's, 0 without torchrun."""
        return cls(
            environment.get(DIRECTORY_VARIABLE) or None,
            rank=int(environment.get("RANK") or 0),
            local_rank=int(environment.get("LOCAL_RANK") or 0),
        )

    def started(self) -> None:
        """Write ``{"pid", "rank", "local_rank"}`` and forget an earlier attempt's error."""
        if self._directory is None:
            return
        os.makedirs(self._directory, exist_ok=True)
        try:
            os.unlink(self._path(".error"))
        except FileNotFoundError:
            pass
        # By hand: a script that never uses json should not pay for its import.
        self._write(
            self._path(""),
            f'{{"pid": {os.getpid()}, "rank": {self._rank}, "local_rank": {self._local_rank}}}\n',
        )

    def failed(self, error: BaseException) -> None:
        """Write how `error` ended this worker; a full disk must not hide the error itself."""
        if self._directory is None or _exit_code(error) == 0:
            return
        import json
        import time
        import traceback

        text = "".join(traceback.format_exception(error))
        record = {
            "rank": self._rank,
            "type": type(error).__qualname__,
            "message": _message(error)[:MESSAGE_LIMIT],
            "traceback_tail": text[-TRACEBACK_LIMIT:],
            "exit_code": _exit_code(error),
            "time": time.time(),
        }
        try:
            self._write(self._path(".error"), json.dumps(record) + "\n")
        except OSError:
            return

    def _path(self, kind: str) -> str:
        return os.path.join(self._directory or "", f"rank-{self._rank}{kind}.json")

    @staticmethod
    def _write(path: str, text: str) -> None:
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.replace(temporary, path)


def _exit_code(error: BaseException) -> int:
    """The status Python itself exits with after `error` (language reference, SystemExit)."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (a script's own __str__)
        return "(its message could not be printed)"
