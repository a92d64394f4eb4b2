"""Times the steps of any script and ends it there: one trial of a comparison or a batch search.

HOTFIRE_MEASURE_STEPS is the number of optimizer steps after which the process exits with 0;
HOTFIRE_MEMORY_LIMIT, in bytes of this process's resident memory, ends it with 137 when it needs
more, as a kernel would. Each rank leaves ``measures/rank-<N>.json`` below SM_OUTPUT_DATA_DIR: see
`Record`. The standard library is enough until a step happens.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hotfire.runtime.xla.compiler_debug import output_data, xla_compilations
from hotfire.runtime.xla.compilers import inductor_graphs, parameters

TOO_MUCH = 137
"""128 + SIGKILL: what a process ends with that the kernel kills for lack of memory."""

_LOOK_SECONDS = 0.02


@dataclass(kw_only=True)
class Record:
    """What one rank did. Times in seconds since the process began, memory in bytes.

    `peak_device_bytes` is None where the device has no memory of its own (CPU) or does not tell.
    """

    rank: int
    world_size: int
    device: str = ""
    steps: list[float] = field(default_factory=list)
    ended: str = "exit"
    """"steps": all that were asked for; "memory": the limit; "exit": the script's own end."""
    compilations: int = 0
    compile_seconds: float = 0.0
    peak_host_bytes: int = 0
    peak_device_bytes: int | None = None


def recorder(environment: Mapping[str, str]) -> Callable[[Any], None]:
    """The hook to call after each optimizer step; starts the watch over memory."""
    limit = int(environment.get("HOTFIRE_MEMORY_LIMIT") or 0)
    record = Record(
        rank=int(environment.get("RANK") or 0), world_size=int(environment.get("WORLD_SIZE") or 1)
    )
    where = output_data(environment) / "measures"
    recorder = _Recorder(record, where, int(environment["HOTFIRE_MEASURE_STEPS"]))
    if limit:
        threading.Thread(target=recorder.watch_memory, args=(limit,), daemon=True).start()
    return recorder.stepped


class _Recorder:
    def __init__(self, record: Record, where: Path, wanted: int) -> None:
        self._record = record
        self._where = where
        self._wanted = wanted
        self._lock = threading.Lock()
        self._began = _process_start()
        self._pid = os.getpid()
        atexit.register(self._end, "exit")

    def stepped(self, optimizer: Any) -> None:
        device = parameters(optimizer)[0].device
        _await(device)
        self._record.device = device.type
        self._record.steps.append(time.clock_gettime(time.CLOCK_BOOTTIME) - self._began)
        if len(self._record.steps) >= self._wanted:
            _finish(device.type)
            self._end("steps", status=0)

    def watch_memory(self, limit: int) -> None:
        """End the process at once when its resident memory is more than `limit` bytes."""
        while memory()["VmRSS"] <= limit:
            time.sleep(_LOOK_SECONDS)
        self._end("memory", status=TOO_MUCH)

    def _end(self, why: str, status: int | None = None) -> None:
        if os.getpid() != self._pid:
            return  # a fork of the script's own
        with self._lock:
            self._record.ended = why
            self._record.peak_host_bytes = memory()["VmHWM"]
            if why != "memory":
                # The compilers' own accounts may not be looked into from another thread.
                self._record.compilations, self._record.compile_seconds = _compilations()
                self._record.peak_device_bytes = _device_peak(self._record.device)
            self._where.mkdir(parents=True, exist_ok=True)
            path = self._where / f"rank-{self._record.rank}.json"
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(asdict(self._record)), encoding="utf-8")
            temporary.replace(path)
            if status is not None:
                sys.stdout.flush()
                sys.stderr.flush()
                # Not an exception: a script may catch it, and its threads may not end.
                os._exit(status)


def _await(device: Any) -> None:
    """Wait for the work that the device was given; what it takes shows in no other way.

    XLA's part of the last step: it computes while the script describes this one, which the wait
    does not cut in two.
    """
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    elif device.type == "xla":
        import torch_xla.core.xla_model as xm

        xm.wait_device_ops()


def _finish(device: str) -> None:
    """Let the device do what is pending: other ranks may wait for this one's part of it."""
    if device == "xla":
        import torch_xla
        import torch_xla.core.xla_model as xm

        torch_xla.sync()
        xm.wait_device_ops()


def _compilations() -> tuple[int, float]:
    count, seconds = xla_compilations()
    if dynamo := sys.modules.get("torch._dynamo.utils"):
        times = dynamo.compilation_time_metrics
        parts = ("_compile.compile_inner", "backward._backward_impl")
        seconds += sum(sum(times[part]) for part in parts if part in times)
    return count + inductor_graphs(), seconds


def _device_peak(device: str) -> int | None:
    """Bytes that the device's allocator held at most; None where there is none or it cannot say."""
    if device == "cuda":
        import torch

        return int(torch.cuda.max_memory_reserved())
    if device == "xla":
        import torch_xla
        import torch_xla.core.xla_model as xm

        try:
            found: Mapping[str, Any] = xm.get_memory_info(torch_xla.device())
        except RuntimeError:
            return None
        return int(found.get("peak_bytes_used") or found["bytes_used"])
    return None


def memory() -> dict[str, int]:
    """VmRSS and VmHWM of this process in bytes (proc_pid_status(5) counts in KiB)."""
    with open("/proc/self/status", encoding="ascii") as lines:  # noqa: PTH123
        found = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "VmHWM")))
    return {name: int(value.split()[0]) << 10 for name, value in found.items()}


def _process_start() -> float:
    """When this process began, in seconds since boot (proc_pid_stat(5), starttime)."""
    text = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    return int(text.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
