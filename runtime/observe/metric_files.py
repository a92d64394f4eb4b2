"""The points and statistics of a job on disk, and what is made of them: CSV, JSON, a table.

``points.csv`` grows while the job runs (``time,metric,host,value``; seconds since the epoch); ``statistics.json``
is written whole at the end.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from hotfire.runtime.observe.metrics import MetricPoint, Statistics, final_metrics
from hotfire.runtime.trees import printable

HEADER = ("time", "metric", "host", "value")


@dataclass
class PointFile:
    """A sink that appends to a CSV file, one write per chunk of log; a disk that is full loses points, not the job."""

    path: Path
    error: OSError | None = None
    """Why points were not written."""
    _file: TextIO | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        try:
            self._file = self.path.open("a", encoding="utf-8", newline="")
            if not self._file.tell():
                self._write([HEADER])
        except OSError as error:
            self.error = error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as failure:
                self.error = self.error or failure

    def __call__(self, points: Sequence[MetricPoint]) -> None:
        self._write([(f"{one.time:.3f}", one.name, one.host, repr(one.value)) for one in points])

    def _write(self, rows: Sequence[Sequence[str]]) -> None:
        if self._file is None:
            return
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        try:
            self._file.write(text.getvalue())
            self._file.flush()
        except OSError as error:
            self.error = self.error or error


def read_points(path: Path) -> Iterator[MetricPoint]:
    """The points of one file in order; none if there is none. A last row that is half written is left out."""
    try:
        source = path.open(encoding="utf-8", newline="")
    except FileNotFoundError:
        return
    with source:
        for row in csv.reader(line for line in source if line.endswith("\n")):
            if len(row) == len(HEADER) and tuple(row) != HEADER:
                yield MetricPoint(float(row[0]), row[1], row[2], float(row[3]))


def write_statistics(path: Path, statistics: Sequence[Statistics]) -> None:
    """Write them whole; raises OSError and leaves the old file."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_text(json.dumps([one.to_json() for one in statistics]), encoding="utf-8")
        os.replace(temporary, path)  # noqa: PTH105
    finally:
        temporary.unlink(missing_ok=True)


def read_statistics(path: Path) -> tuple[Statistics, ...]:
    """What :func:`write_statistics` wrote; nothing if it never did."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    return tuple(Statistics.from_json(one) for one in raw)


def known_statistics(statistics: Path, points: Path) -> tuple[Statistics, ...]:
    """Those of an ended job, or what the points of one that runs, or lost its supervisor, tell."""
    if found := read_statistics(statistics):
        return found
    values: dict[str, list[MetricPoint]] = {}
    for one in read_points(points):
        values.setdefault(one.name, []).append(one)
    return tuple(
        Statistics(
            name=name,
            regex="",
            matches=len(of),
            values=len(of),
            last=of[-1].value,
            last_time=of[-1].time,
            smallest=min(one.value for one in of),
            largest=max(one.value for one in of),
        )
        for name, of in values.items()
    )


def to_csv(points: Iterator[MetricPoint], out: TextIO) -> None:
    """``hotfire metrics NAME --csv``: the columns of :data:`HEADER`."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows((f"{one.time:.3f}", one.name, one.host, repr(one.value)) for one in points)


def to_json(points: Iterator[MetricPoint], statistics: Sequence[Statistics]) -> dict[str, Any]:
    """``hotfire metrics NAME --json``."""
    return {
        "FinalMetricDataList": final_metrics(statistics),
        "Statistics": [one.to_json() for one in statistics],
        "Points": [
            {"Time": one.time, "MetricName": one.name, "Host": one.host, "Value": one.value}
            for one in points
        ],
    }


def table(statistics: Sequence[Statistics]) -> str:
    """``hotfire metrics NAME``: a row per definition, then what its pattern got wrong."""
    rows: list[tuple[str, ...]] = [
        ("METRIC", "LAST", "SMALLEST", "LARGEST", "VALUES", "NOT A NUMBER")
    ]
    for one in statistics:
        rows.append(
            (
                printable(one.name),
                *(_short(value) for value in (one.last, one.smallest, one.largest)),
                str(one.values),
                str(one.matches - one.values),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    warnings = [f"warning: {printable(text)}" for one in statistics for text in one.warnings]
    return "\n".join(lines + warnings) + "\n"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
