"""How a job ended, from exit codes and failure files. Pure; contract 5.4, 5.5, 5.10."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hotfire.runtime.status import SecondaryStatus

REASON_LIMIT = 1024
"""Characters of FailureReason, prefix and exit code included (contract 5.5)."""


class StopCause(Enum):
    """Why the platform itself ended the hosts."""

    REQUEST = SecondaryStatus.STOPPED
    MAX_RUNTIME = SecondaryStatus.MAX_RUNTIME_EXCEEDED
    MAX_WAIT_TIME = SecondaryStatus.MAX_WAIT_TIME_EXCEEDED


@dataclass(frozen=True, kw_only=True)
class HostExit:
    """One host's end. ``order`` counts the hosts as they ended; ``told`` says that the platform had sent SIGTERM before."""

    host: str
    exit_code: int
    order: int
    told: bool = False
    failure: str = ""
    """Text of /opt/ml/output/failure, as far as it was read."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The terminal secondary status, its FailureReason, and what deserves a warning."""

    status: SecondaryStatus
    failure_reason: str = ""
    warnings: tuple[str, ...] = ()


def decide(exits: Sequence[HostExit], stop: StopCause | None) -> Outcome:
    """Completed only if every host exited 0. What a host answers to SIGTERM does not count: such jobs end Stopped."""
    warnings = tuple(
        f"{end.host} wrote /opt/ml/output/failure and exited 0: the exit code decides, the job counts as completed."
        for end in exits
        if end.failure and end.exit_code == 0
    )
    failed = sorted(
        (end for end in exits if end.exit_code != 0 and not end.told), key=lambda end: end.order
    )
    # Hosts that were told are not in here: whoever is, had failed before any stop was asked for.
    if failed:
        return Outcome(
            status=SecondaryStatus.FAILED, failure_reason=reason(failed[0]), warnings=warnings
        )
    if stop is not None:
        return Outcome(status=stop.value, warnings=warnings)
    return Outcome(status=SecondaryStatus.COMPLETED, warnings=warnings)


def reason(end: HostExit) -> str:
    """``AlgorithmError: <failure file>, exit code: <n>``, at most :data:`REASON_LIMIT` characters."""
    tail = f", exit code: {end.exit_code}"
    text = end.failure.strip() or _guess(end.exit_code)
    head = "AlgorithmError: "
    return head + text[: REASON_LIMIT - len(head) - len(tail)] + tail


def _guess(exit_code: int) -> str:
    if exit_code == 128 + signal.SIGKILL:
        return "the container was killed (SIGKILL), as the kernel does when memory runs out"
    if exit_code == 127:
        return "the container's program was not found"
    if exit_code == 126:
        return "the container's program cannot be executed"
    return ""
