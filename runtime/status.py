"""The states of a training job, what may follow what, and the record of it (contract 5.1, 5.2)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self

from hotfire.runtime.errors import PlatformError


class TrainingJobStatus(StrEnum):
    IN_PROGRESS = "InProgress"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPING = "Stopping"
    STOPPED = "Stopped"

    @property
    def terminal(self) -> bool:
        return self in (self.COMPLETED, self.FAILED, self.STOPPED)


class SecondaryStatus(StrEnum):
    STARTING = "Starting"
    PENDING = "Pending"
    DOWNLOADING = "Downloading"
    TRAINING = "Training"
    INTERRUPTED = "Interrupted"
    RESTARTING = "Restarting"
    UPDATING = "Updating"
    UPLOADING = "Uploading"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    MAX_RUNTIME_EXCEEDED = "MaxRuntimeExceeded"
    MAX_WAIT_TIME_EXCEEDED = "MaxWaitTimeExceeded"
    COMPLETED = "Completed"
    FAILED = "Failed"

    @property
    def terminal(self) -> bool:
        return not NEXT[self]


_S = SecondaryStatus
_ENDS = frozenset({_S.FAILED, _S.STOPPING})

# What may follow what. Failed may follow every live status (the platform itself can fail at any moment), and so may
# Stopping. Uploading follows Stopping because a stopped job's artifacts are uploaded too (contract 5.4).
NEXT: dict[SecondaryStatus, frozenset[SecondaryStatus]] = {
    _S.PENDING: _ENDS | {_S.STARTING},
    _S.STARTING: _ENDS | {_S.PENDING, _S.DOWNLOADING, _S.TRAINING, _S.INTERRUPTED, _S.RESTARTING},
    _S.DOWNLOADING: _ENDS | {_S.TRAINING, _S.INTERRUPTED, _S.RESTARTING},
    _S.TRAINING: _ENDS | {_S.UPLOADING, _S.INTERRUPTED, _S.RESTARTING, _S.UPDATING},
    _S.UPDATING: _ENDS | {_S.TRAINING},
    _S.INTERRUPTED: _ENDS | {_S.STARTING, _S.DOWNLOADING},
    _S.RESTARTING: _ENDS | {_S.STARTING, _S.DOWNLOADING},
    _S.UPLOADING: _ENDS
    | {_S.COMPLETED, _S.STOPPED, _S.MAX_RUNTIME_EXCEEDED, _S.MAX_WAIT_TIME_EXCEEDED},
    _S.STOPPING: frozenset(
        {
            _S.UPLOADING,
            _S.STOPPED,
            _S.MAX_RUNTIME_EXCEEDED,
            _S.MAX_WAIT_TIME_EXCEEDED,
            _S.FAILED,
        }
    ),
    _S.STOPPED: frozenset(),
    _S.MAX_RUNTIME_EXCEEDED: frozenset(),
    _S.MAX_WAIT_TIME_EXCEEDED: frozenset(),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
}

_PRIMARY = {
    _S.COMPLETED: TrainingJobStatus.COMPLETED,
    _S.FAILED: TrainingJobStatus.FAILED,
    _S.STOPPING: TrainingJobStatus.STOPPING,
    _S.STOPPED: TrainingJobStatus.STOPPED,
    _S.MAX_RUNTIME_EXCEEDED: TrainingJobStatus.STOPPED,
    _S.MAX_WAIT_TIME_EXCEEDED: TrainingJobStatus.STOPPED,
}


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class StatusVisit:
    """One entry of SecondaryStatusTransitions. ``end`` is None while the status lasts."""

    status: SecondaryStatus
    start: datetime
    end: datetime | None = None
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"Status": self.status.value, "StartTime": self.start.isoformat()}
        if self.end is not None:
            out["EndTime"] = self.end.isoformat()
        return out | {"StatusMessage": self.message}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        end = raw.get("EndTime")
        return cls(
            status=SecondaryStatus(raw["Status"]),
            start=datetime.fromisoformat(raw["StartTime"]),
            end=None if end is None else datetime.fromisoformat(end),
            message=raw.get("StatusMessage", ""),
        )


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """What is known of a job, as a value; :meth:`moved` is the only way from one status to the next."""

    name: str
    creation_time: datetime
    visits: tuple[StatusVisit, ...] = ()
    last_modified_time: datetime | None = None
    training_start_time: datetime | None = None
    training_end_time: datetime | None = None
    failure_reason: str = ""
    s3_model_artifacts: str = ""
    # Facts that DescribeTrainingJob does not carry: exit codes, artifact sizes, peak memory, warnings.
    receipt: dict[str, Any] = field(default_factory=dict)

    @property
    def secondary_status(self) -> SecondaryStatus:
        return self.visits[-1].status

    @property
    def status(self) -> TrainingJobStatus:
        # A stopping job stays Stopping while its artifacts are uploaded (contract 5.1).
        last = self.secondary_status
        if last is _S.UPLOADING and any(visit.status is _S.STOPPING for visit in self.visits):
            return TrainingJobStatus.STOPPING
        return _PRIMARY.get(last, TrainingJobStatus.IN_PROGRESS)

    @property
    def restarts(self) -> int:
        """How often an error of the platform side was answered with another attempt (RetryStrategy)."""
        return sum(visit.status is _S.RESTARTING for visit in self.visits)

    @property
    def spent_seconds(self) -> float:
        """Of attempts that are over: what MaxRuntimeInSeconds counts."""
        over = [one for one in self.visits if one.status in (_S.DOWNLOADING, _S.TRAINING)]
        return sum((one.end - one.start).total_seconds() for one in over if one.end is not None)

    @property
    def training_seconds(self) -> int | None:
        """TrainingTimeInSeconds: at least 1 once both ends are known, None before (contract 5.8, 9.2)."""
        if self.training_start_time is None or self.training_end_time is None:
            return None
        return max(1, round((self.training_end_time - self.training_start_time).total_seconds()))

    def moved(self, status: SecondaryStatus, message: str, now: datetime) -> JobRecord:
        """The record after the job entered ``status``; the same status again only replaces the message.

        Raises:
            PlatformError: the move is not in :data:`NEXT`.
        """
        if not self.visits:
            first = StatusVisit(status=status, start=now, message=message)
            return replace(self, visits=(first,), last_modified_time=now)
        last = self.visits[-1]
        # A clock that was set back must not make a status end before it began.
        now = max(now, last.start)
        if status is last.status and not last.status.terminal:
            visits = (*self.visits[:-1], replace(last, message=message))
            return replace(self, visits=visits, last_modified_time=now)
        if status not in NEXT[last.status]:
            raise PlatformError(
                f"job {self.name} cannot go from {last.status} to {status}.",
                do="This is a defect of hotfire: please report it with the job's record.json.",
            )
        entered = StatusVisit(
            status=status, start=now, end=now if not NEXT[status] else None, message=message
        )
        return replace(
            self,
            visits=(*self.visits[:-1], replace(last, end=now), entered),
            last_modified_time=now,
        )

    def to_json(self) -> dict[str, Any]:
        def text(moment: datetime | None) -> str | None:
            return None if moment is None else moment.isoformat()

        return {
            "name": self.name,
            "creation_time": self.creation_time.isoformat(),
            "visits": [visit.to_json() for visit in self.visits],
            "last_modified_time": text(self.last_modified_time),
            "training_start_time": text(self.training_start_time),
            "training_end_time": text(self.training_end_time),
            "failure_reason": self.failure_reason,
            "s3_model_artifacts": self.s3_model_artifacts,
            "receipt": self.receipt,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        def moment(key: str) -> datetime | None:
            return None if raw.get(key) is None else datetime.fromisoformat(raw[key])

        return cls(
            name=raw["name"],
            creation_time=datetime.fromisoformat(raw["creation_time"]),
            visits=tuple(StatusVisit.from_json(visit) for visit in raw["visits"]),
            last_modified_time=moment("last_modified_time"),
            training_start_time=moment("training_start_time"),
            training_end_time=moment("training_end_time"),
            failure_reason=raw["failure_reason"],
            s3_model_artifacts=raw["s3_model_artifacts"],
            receipt=raw["receipt"],
        )
