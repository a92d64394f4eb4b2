"""torchrun with a memory: which worker ended first, and how.

``torchrun`` itself answers 1 whatever its workers did, and kills the other workers 30 seconds after the first one
failed. This module runs in its place, with torch's own launcher and arguments, and does two things beside: it keeps a
report of all workers in HOTFIRE_WORKER_DIR, and while the job is being stopped it leaves the workers alone until their
grace period is over (``train`` signals them itself).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPORT = "agent.json"
STOP = "stop"
"""Holds the time of the monotonic clock, which all processes share, when the grace period ends."""


class Report:
    """``agent.json``: ``{"workers": {RANK: WORKER}, "error": null | {"type", "message"}}``.

    A worker is ``{"pid", "exit_code", "time", "closed"}``: the time when its end was noticed, and whether that was
    after the agent itself had begun to end the workers.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / REPORT
        self.stop = directory / STOP
        self._workers: dict[str, dict[str, Any]] = {}
        self._error: dict[str, str] | None = None

    def started(self, rank: str, pid: int) -> None:
        self._workers[rank] = {"pid": pid, "exit_code": None, "time": None, "closed": False}

    def ended(self, rank: str, code: int, *, closed: bool) -> bool:
        """Note an end once; says whether it was news."""
        worker = self._workers[rank]
        if worker["exit_code"] is not None:
            return False
        worker.update(exit_code=code if code >= 0 else 128 - code, time=time.time(), closed=closed)
        return True

    def failed(self, error: BaseException) -> None:
        self._error = {"type": type(error).__qualname__, "message": str(error)}
        self.write()

    def write(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        text = json.dumps({"workers": self._workers, "error": self._error})
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self._path)

    def deadline(self) -> float | None:
        """When the workers' grace period ends; None while nobody has stopped the job."""
        try:
            return float(self.stop.read_text())
        except (OSError, ValueError):
            return None


def reporting_context(base: type[Any], report: Report) -> type[Any]:
    """torch's SubprocessContext (one process per worker), reporting to ``report``."""

    class ReportingContext(base):  # type: ignore[misc]
        def _start(self) -> None:
            super()._start()
            for local_rank, handler in self.subprocess_handlers.items():
                report.started(self._rank(local_rank), handler.proc.pid)
            report.write()

        def _poll(self) -> Any:
            self._note()
            return super()._poll()

        def _close(self, death_sig: Any, timeout: int = 30) -> None:
            while (end := report.deadline()) is not None and time.monotonic() < end:
                if self._note():
                    break
                time.sleep(0.05)
            self._note()
            super()._close(death_sig, timeout)
            self._note(closed=True)

        def _rank(self, local_rank: int) -> str:
            return str(self.envs[local_rank]["RANK"])

        def _note(self, *, closed: bool = False) -> bool:
            """Write down who has ended; says whether all have."""
            codes = {rank: h.proc.poll() for rank, h in self.subprocess_handlers.items()}
            ended = {rank: code for rank, code in codes.items() if code is not None}
            news = [
                report.ended(self._rank(rank), code, closed=closed) for rank, code in ended.items()
            ]
            if any(news):
                report.write()
            return len(ended) == len(codes)

    return ReportingContext


def launch(argv: list[str], report: Report) -> int:
    """Run torchrun's ``argv``; 0, or 1 as torchrun says it when a worker failed."""
    # All of it here: importing torch takes seconds, and can fail.
    import torch.distributed.elastic.multiprocessing as processes
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    # The name that start_processes() looks up; torch offers no argument for it.
    names = vars(processes)
    names["SubprocessContext"] = reporting_context(names["SubprocessContext"], report)
    options: Any = parse_args(argv)  # type: ignore[no-untyped-call]
    config, command, arguments = config_from_args(options)
    run: Callable[..., Any] = elastic_launch(config=config, entrypoint=command)
    try:
        run(*arguments)
    except ChildFailedError:
        return 1
    return 0


def main(argv: list[str]) -> int:
    report = Report(Path(os.environ["HOTFIRE_WORKER_DIR"]))
    try:
        return launch(argv, report)
    except Exception as error:
        report.failed(error)
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
