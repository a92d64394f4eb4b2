"""Compilers side by side: what their trials measured, as rows of a table. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from hotfire.runtime.storage import human
from hotfire.runtime.trials.trial import Measured

WARM_UP = 5
"""Steps left out of the step time. XLA compiles in the first two, and torch's own caches fill."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One compiler. ``start_seconds`` is what a job costs beyond its steady steps: imports, data, compilation."""

    compiler: str
    device: str
    step_seconds: float
    samples_per_second: float | None
    start_seconds: float
    compile_seconds: float
    compilations: int
    peak_host_bytes: int
    peak_device_bytes: int | None
    break_even_step: int | None = None
    """The first step after which this compiler's job is ahead of the baseline's; None: never."""


def rows(trials: Sequence[Measured], samples_per_step: int | None) -> list[Row]:
    """A row per compiler in the order of its first trial; the first is the baseline of the others.

    Args:
        trials: each with more than ``WARM_UP`` steps; several of one compiler are pooled.
        samples_per_step: over all workers; None where nobody knows.
    """
    compilers = dict.fromkeys(one.compiler for one in trials)
    found = [
        _row([one for one in trials if one.compiler == compiler], samples_per_step)
        for compiler in compilers
    ]
    return [found[0], *(_against(found[0], row) for row in found[1:])]


def _row(trials: Sequence[Measured], samples_per_step: int | None) -> Row:
    steady = [
        after - before for one in trials for before, after in pairwise(one.step_ends[WARM_UP - 1 :])
    ]
    step = statistics.median(steady)
    starts = [one.step_ends[WARM_UP - 1] - WARM_UP * step for one in trials]
    on_device = [one.peak_device_bytes for one in trials if one.peak_device_bytes is not None]
    return Row(
        compiler=trials[0].compiler,
        device=trials[0].device,
        step_seconds=step,
        samples_per_second=samples_per_step / step if samples_per_step else None,
        start_seconds=statistics.median(starts),
        compile_seconds=statistics.median(one.compile_seconds for one in trials),
        compilations=trials[0].compilations,
        peak_host_bytes=max(one.peak_host_bytes for one in trials),
        peak_device_bytes=max(on_device, default=None),
    )


def _against(baseline: Row, row: Row) -> Row:
    late = row.start_seconds - baseline.start_seconds
    gain = baseline.step_seconds - row.step_seconds
    even = max(1, math.ceil(late / gain)) if gain > 0 else None
    return Row(**{**asdict(row), "break_even_step": even})


_BUSY = 0.7
"""Load of each processor from which on eager and Inductor's threads get into each other's way."""

HEADS = (
    "compiler",
    "device",
    "compile s",
    "start s",
    "step s",
    "samples/s",
    "host memory",
    "device memory",
    "ahead from step",
)


def cells(found: Sequence[Row]) -> list[tuple[str, ...]]:
    """The rows for people, under ``HEADS``."""
    return [_cells(row, baseline=number == 0) for number, row in enumerate(found)]


def _cells(row: Row, *, baseline: bool) -> tuple[str, ...]:
    even = "never" if row.break_even_step is None else str(row.break_even_step)
    return (
        row.compiler,
        row.device,
        f"{row.compile_seconds:.1f} ({row.compilations})",
        f"{row.start_seconds:.1f}",
        f"{row.step_seconds:.4g}",
        "-" if row.samples_per_second is None else f"{row.samples_per_second:.4g}",
        human(row.peak_host_bytes),
        "-" if row.peak_device_bytes is None else human(row.peak_device_bytes),
        "-" if baseline else even,
    )


def remarks(found: Sequence[Row], busy: float = 0.0) -> list[str]:
    """What the figures do not say by themselves, a line each."""
    said = [
        f"{row.compiler} compiled nothing: the script trained eagerly on {row.device}"
        for row in found
        if row.compiler != "none" and row.compilations == 0
    ]
    said += [
        f"none: the script compiles by itself ({row.compilations} compilations)"
        for row in found
        if row.compiler == "none" and row.compilations
    ]
    if busy > _BUSY:
        said.append(
            f"the machine was busy (load {busy:.1f} on each processor): do not trust these times"
        )
    if any(row.device == "cpu" or row.peak_device_bytes is None for row in found):
        said.append("host memory is that of a worker process; it is no device's memory")
    return said


def document(found: Sequence[Row], *, busy: float = 0.0) -> dict[str, Any]:
    """For programs. ``busy`` is the load average of each processor before the first trial."""
    return {"Compilers": [asdict(row) for row in found], "Remarks": remarks(found, busy)}
