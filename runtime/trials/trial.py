"""One trial: the job as it is, in fresh processes, ended after a few optimizer steps.

A trial is a job like any other (own /opt/ml, torchrun, credentials). What is added to its request are variables that
`hotfire.runtime.xla.measure` reads in every worker. Nothing of it stays: neither job nor outputs, unless it fails.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from hotfire.runtime import flags, preparation, service
from hotfire.runtime.errors import ExitCode, HotfireError
from hotfire.runtime.events import Observer
from hotfire.runtime.layout import MlTree
from hotfire.runtime.observe import log_pieces
from hotfire.runtime.status import TrainingJobStatus
from hotfire.runtime.surroundings import Options, Surroundings

_KILLED = 137
_LOG_TAIL = 1 << 16

# What does not fit says so in these words: Python, glibc's C++, torch on CPU and CUDA, XLA, the Neuron runtime.
_NO_MEMORY = re.compile(
    r"\bMemoryError\b|std::bad_alloc|can't allocate memory|Cannot allocate memory|RESOURCE_EXHAUSTED"
    r"|OutOfMemoryError|CUDA out of memory|Out of memory (?:while|allocating)|NRT_RESOURCE"
)

# Members of a request that a trial must not have: it would resume, or be interrupted, or leave something behind.
_NOT_IN_TRIALS = ("CheckpointConfig", "EnableManagedSpotTraining", "RetryStrategy", "Tags")


class TrialFailed(HotfireError):
    """The script failed for another reason than memory."""

    exit_code = ExitCode.FAILED


class TrialStopped(HotfireError):
    """Somebody asked the job to stop."""

    exit_code = ExitCode.STOPPED


class Verdict(Enum):
    FITS = "fits"
    MEMORY = "does not fit"
    DATA = "the data ended first"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What to run. ``memory_limit`` is in bytes of resident host memory of each worker; 0: none."""

    request: Mapping[str, Any]
    label: str
    compiler: str
    steps: int
    hyperparameters: Mapping[str, int] = field(default_factory=dict)
    memory_limit: int = 0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a trial came to. Seconds since each worker began, of rank 0; memory in bytes, of the worker with most.

    ``peak_device_bytes`` is None on a CPU, whose memory is the host's, and where the device does not tell.
    """

    compiler: str
    verdict: Verdict
    step_ends: tuple[float, ...] = ()
    device: str = ""
    world_size: int = 1
    compilations: int = 0
    compile_seconds: float = 0.0
    peak_host_bytes: int = 0
    peak_device_bytes: int | None = None


def run(
    trial: Trial,
    options: Options,
    around: Surroundings,
    observer: Observer,
    now: datetime,
) -> Measured:
    """Run the trial to its end.

    Raises:
        TrialFailed: the script ended with an error that is not one of memory; the job is kept.
        TrialStopped: the job was asked to stop.
        ValidationError: the job is refused.
    """
    name = flags.default_name(trial.label, now)
    with tempfile.TemporaryDirectory(prefix="hotfire-trial-") as outputs:
        request = as_request(trial, name, Path(outputs))
        prepared = preparation.prepare(request, options, around, observer)
        record = service.run_prepared(prepared, options, around, observer)
    if record.status is TrainingJobStatus.STOPPED:
        service.delete(name, around)
        raise TrialStopped(f"stopped during the trial with {_described(trial)}.")
    job_dir = around.store.open(name)
    hosts = [job_dir.host(1, host) for host in prepared.job.resource_config.hosts]
    records = [one for host in hosts for one in _records(host.ml)]
    tails = "\n".join(
        log_pieces.tail(host.log, _LOG_TAIL).decode("utf-8", "replace") for host in hosts
    )
    codes = set(record.receipt.get("exit_codes", {}).values())
    verdict = judge(trial, records, codes, record.failure_reason + tails)
    if verdict is None:
        raise TrialFailed(
            f"the trial with {_described(trial)} failed: {record.failure_reason}",
            do=f"hotfire logs {name} shows its output; the script must run before it can be measured.",
        )
    service.delete(name, around)
    return _summary(trial, verdict, records)


def as_request(trial: Trial, name: str, outputs: Path) -> dict[str, Any]:
    """The job's request with the trial's values, its name, and the variables of the measurement. Pure."""
    raw = {key: value for key, value in trial.request.items() if key not in _NOT_IN_TRIALS}
    raw = flags.overridden(raw, name=name, cwd=outputs)
    values = {key: json.dumps(value) for key, value in trial.hyperparameters.items()}
    measuring = {
        "HOTFIRE_COMPILER": trial.compiler,
        "HOTFIRE_MEASURE_STEPS": str(trial.steps),
        **({"HOTFIRE_MEMORY_LIMIT": str(trial.memory_limit)} if trial.memory_limit else {}),
    }
    return {
        **raw,
        "HyperParameters": {**raw.get("HyperParameters", {}), **values},
        "Environment": {**raw.get("Environment", {}), **measuring},
        "OutputDataConfig": {"S3OutputPath": outputs.as_uri()},
    }


def judge(
    trial: Trial, records: list[dict[str, Any]], exit_codes: set[int], text: str
) -> Verdict | None:
    """What the workers' records, the hosts' exit codes and their last words say; None: a failure of the script's own.

    Records may be missing: a worker that the kernel killed leaves none.
    """
    if any(one["ended"] == "memory" for one in records):
        return Verdict.MEMORY
    if exit_codes - {0}:
        return Verdict.MEMORY if _KILLED in exit_codes or _NO_MEMORY.search(text) else None
    if trial.memory_limit and any(one["peak_host_bytes"] > trial.memory_limit for one in records):
        return Verdict.MEMORY
    if not records:
        return None
    done = min(len(one["steps"]) for one in records)
    return Verdict.FITS if done >= trial.steps else Verdict.DATA


def _described(trial: Trial) -> str:
    values = [f"{name}={value}" for name, value in trial.hyperparameters.items()]
    return ", ".join([f"compiler {trial.compiler}", *values])


def _records(tree: MlTree) -> list[dict[str, Any]]:
    found = []
    for path in sorted((tree.output_data / "measures").glob("rank-*.json")):
        with contextlib.suppress(ValueError):
            found.append(json.loads(path.read_text(encoding="utf-8")))
    return found


def _summary(trial: Trial, verdict: Verdict, records: list[dict[str, Any]]) -> Measured:
    if not records:
        return Measured(compiler=trial.compiler, verdict=verdict)
    first = min(records, key=lambda one: int(one["rank"]))
    on_device = [one["peak_device_bytes"] for one in records]
    return Measured(
        compiler=trial.compiler,
        verdict=verdict,
        step_ends=tuple(first["steps"]),
        device=first["device"],
        world_size=first["world_size"],
        compilations=first["compilations"],
        compile_seconds=first["compile_seconds"],
        peak_host_bytes=max(one["peak_host_bytes"] for one in records),
        peak_device_bytes=None if None in on_device else max(on_device),
    )
