"""Metrics of training jobs in CloudWatch: published whenever somebody is about to look, so never too late.

Where points are kept is a file per job (:mod:`hotfire.runtime.observe.metric_files`); a CloudWatch beside it is told
what is new in them just before it answers. Nothing is lost when the server is killed: the files are read again.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hotfire.runtime.endpoint.index import Index, Mark, mark_of
from hotfire.runtime.layout import JobDir
from hotfire.runtime.observe.metric_files import read_points
from hotfire.runtime.store import Store

NAMESPACE = "/aws/sagemaker/TrainingJobs"
BATCH = 500
_POINTS = JobDir(Path()).points.name
Datum = dict[str, Any]
Put = Callable[[str, Mapping[str, Any]], None]
"""PutMetricData in a region."""


class Publisher:
    """Hands new points of all jobs to ``put``, once per region that is asked."""

    def __init__(self, store: Store, index: Index, put: Put) -> None:
        self._jobs = str(store.jobs)
        self._index = index
        self._put = put
        self._told: dict[tuple[str, str, float], tuple[Mark, int]] = {}
        self._lock = threading.Lock()

    def publish(self, region: str) -> None:
        """Tell everything that is new. Values that no metric can hold (NaN, infinity) are left out."""
        with self._lock:
            for row in self._index.rows():
                points = f"{self._jobs}/{row.name}/{_POINTS}"
                mark = mark_of(points)
                key = (region, row.name, row.created)
                known, count = self._told.get(key, ((0, 0, 0), 0))
                if mark == known:
                    continue
                fresh = list(itertools.islice(read_points(Path(points)), count, None))
                for batch in _batches(
                    _datum(row.name, one.time, one.name, one.value)
                    for one in fresh
                    if math.isfinite(one.value)
                ):
                    self._put(region, {"Namespace": NAMESPACE, "MetricData": batch})
                self._told[key] = (mark, count + len(fresh))


def _datum(job: str, time: float, name: str, value: float) -> Datum:
    return {
        "MetricName": name,
        "Dimensions": [{"Name": "TrainingJobName", "Value": job}],
        "Timestamp": time,
        "Value": value,
    }


def _batches(items: Iterator[Datum]) -> Iterator[list[Datum]]:
    while batch := list(itertools.islice(items, BATCH)):
        yield batch
