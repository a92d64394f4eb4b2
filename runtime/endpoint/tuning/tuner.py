"""Moves tuning jobs on: creates training jobs, looks how they ended, stops what is hopeless, decides when it is over.

One step looks at everything anew, so nothing is lost with the process that takes it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hotfire.runtime.endpoint.index import Index, Mark, mark_of
from hotfire.runtime.endpoint.tuning import outcomes
from hotfire.runtime.endpoint.tuning.outcomes import Summary
from hotfire.runtime.endpoint.tuning.ranges import values
from hotfire.runtime.endpoint.tuning.record import IN_PROGRESS, STOPPING, Record, Shelf, Trial
from hotfire.runtime.endpoint.tuning.request import Asked, parse
from hotfire.runtime.endpoint.tuning.strategies import Tried
from hotfire.runtime.errors import (
    HotfireError,
    ResourceLimitExceeded,
    ResourceNotFound,
)
from hotfire.runtime.observe.metric_files import read_points
from hotfire.runtime.store import Store

logger = logging.getLogger(__name__)
Create = Callable[[dict[str, Any], str, Mapping[str, Any]], None]
"""Creates a training job unless it is there: its request, the region, what DescribeTrainingJob says beside it."""
Stop = Callable[[str], None]
COMPLETED, FAILED, STOPPED = "Completed", "Failed", "Stopped"


@dataclass
class Tuner:
    """Over all tuning jobs of a shelf. One thread calls :meth:`step`."""

    shelf: Shelf
    store: Store
    index: Index
    create: Create
    stop: Stop
    _asked: dict[str, Asked] = field(default_factory=dict)
    _curves: dict[str, tuple[Mark, list[float]]] = field(default_factory=dict)
    _troubles: dict[str, str] = field(default_factory=dict)

    def asked(self, record: Record) -> Asked:
        """The request of a tuning job, understood."""
        key = f"{record.name} {record.created}"
        if key not in self._asked:
            self._asked[key] = parse(self.shelf.request(record.name), record.seed)
        return self._asked[key]

    def step(self) -> None:
        """Move every tuning job on that has not ended. An error in one leaves the others alone."""
        for record in self.shelf.records():
            if not record.terminal:
                try:
                    self._step(record.name)
                except Exception as error:
                    # Once and not in every step.
                    if self._troubles.get(record.name) != repr(error):
                        logger.exception("tuning job %s cannot be moved on", record.name)
                    self._troubles[record.name] = repr(error)

    def summaries(self, record: Record) -> list[Summary]:
        """The training jobs as they are now, in the order of their creation."""
        asked = self.asked(record)
        return [
            dict(one.result) if one.result else self._look(one, asked)
            for one in record.trials
            if one.made
        ]

    def _look(self, trial: Trial, asked: Asked) -> Summary:
        try:
            row = self.index.row(trial.name)
        except HotfireError as error:
            # Deleted, or its record cannot be read.
            return outcomes.gone(trial, error.what, time.time())
        return outcomes.summary(trial, row, asked.metric)

    def _step(self, name: str) -> None:
        with self.shelf.lock:
            record = self.shelf.get(name)
            if record is None or record.terminal:
                return
            before, asked = record, self.asked(record)
            record = self._ended(record, asked)
            if not record.ending:
                record = self._decided(record, asked)
            if record.ending:
                record = self._wound_down(record)
            if record != before:
                self.shelf.save(replace(record, modified=time.time()))
            if record.ending:
                return
        if asked.early_stopping:
            self._stop_hopeless(record, asked)
        self._fill(name, asked)

    def _ended(self, record: Record, asked: Asked) -> Record:
        for trial in record.trials:
            if trial.made and trial.result is None:
                found = self._look(trial, asked)
                if found["ObjectiveStatus"] != "Pending":
                    record = record.with_trial(replace(trial, result=found))
        return record

    def _decided(self, record: Record, asked: Asked) -> Record:
        """With ``ending`` where it is over."""
        results = [one.result for one in record.trials if one.result]
        minimise = asked.strategy.minimise
        if reason := outcomes.barren(record, asked.limit):
            return replace(record, ending=FAILED, reason=reason)
        if asked.max_runtime and time.time() - record.created > asked.max_runtime:
            return replace(record, ending=STOPPED)
        top = outcomes.best([dict(one) for one in results], minimise=minimise)
        value = outcomes.objective(top) if top else None
        if asked.target is not None and value is not None:
            reached = value <= asked.target if minimise else value >= asked.target
            if reached:
                return replace(record, ending=COMPLETED)
        patience = asked.not_improving
        if patience and outcomes.not_improving(record, minimise=minimise) >= patience:
            return replace(record, ending=COMPLETED)
        return replace(record, ending=COMPLETED) if len(results) >= asked.limit else record

    def _wound_down(self, record: Record) -> Record:
        """Stop what runs; terminal once nothing does."""
        made = tuple(
            replace(one, made=True)
            for one in record.trials
            # One that a killed server has created and not noted runs as well.
            if one.made or self._exists(one.name)
        )
        left = [one for one in made if one.result is None]
        for one in left:
            self._stop(one.name)
        if left:
            stopping = record.ending == STOPPED
            return replace(record, trials=made, status=STOPPING if stopping else IN_PROGRESS)
        return replace(record, trials=made, status=record.ending, ended=time.time())

    def _exists(self, name: str) -> bool:
        try:
            self.store.open(name)
        except ResourceNotFound:
            return False
        return True

    def _stop(self, name: str) -> None:
        try:
            self.stop(name)
        except HotfireError as error:
            # It ended, or went away, in between.
            logger.debug("%s: %s", name, error)

    def _stop_hopeless(self, record: Record, asked: Asked) -> None:
        ended = [
            self._curve(one.name, asked.metric)
            for one in record.trials
            if one.result and one.result["TrainingJobStatus"] == "Completed"
        ]
        if len(ended) < outcomes.MEDIAN_OF:
            return
        for trial in record.trials:
            if trial.made and trial.result is None:
                curve = self._curve(trial.name, asked.metric)
                if outcomes.hopeless(curve, ended, minimise=asked.strategy.minimise):
                    self._stop(trial.name)

    def _curve(self, name: str, metric: str) -> list[float]:
        """The values of the objective so far, of the first host."""
        try:
            points = self.store.open(name).points
        except ResourceNotFound:
            return []
        mark = mark_of(points)
        known = self._curves.get(name)
        if known is None or known[0] != mark:
            found = [
                one.value
                for one in read_points(points)
                if one.name == metric and one.host in ("", "algo-1")
            ]
            known = self._curves[name] = (mark, found)
        return known[1]

    def _fill(self, name: str, asked: Asked) -> None:
        """Create training jobs until as many run as may."""
        while True:
            with self.shelf.lock:
                record = self.shelf.get(name)
                if record is None or record.ending:
                    return
                trial = next((one for one in record.trials if not one.made), None)
                if trial is None:
                    running = sum(one.result is None for one in record.trials)
                    if running >= asked.parallel or len(record.trials) >= asked.limit:
                        return
                    trial = self._next(record, asked)
                    # Written down before it is created: its name is known then, whatever happens in between.
                    record = record.with_trial(trial)
                    self.shelf.save(record)
            if not self._made(record, trial, asked):
                return

    def _next(self, record: Record, asked: Asked) -> Trial:
        number = len(record.trials)
        tried = [
            Tried(point=one.point, value=outcomes.objective(one.result) if one.result else None)
            for one in record.trials
            if one.result is None or one.result["ObjectiveStatus"] == "Succeeded"
        ]
        point = asked.strategy.suggest(number, tried)
        return Trial(
            name=f"{record.name}-{number + 1:03d}-{secrets.token_hex(4)}",
            point=point,
            parameters=values(asked.strategy.ranges, point),
        )

    def _made(self, record: Record, trial: Trial, asked: Asked) -> bool:
        """Create a training job; False where it has to wait, or the tuning job is over."""
        failure = ""
        try:
            request = asked.training_job(trial.name, trial.parameters)
            self.create(request, record.region, {"TuningJobArn": asked.arn(record.region)})
        except ResourceLimitExceeded:
            return False
        except HotfireError as error:
            failure = error.what
        with self.shelf.lock:
            known = self.shelf.get(record.name)
            if known is None:
                return False
            if failure:
                known = replace(known, ending=known.ending or FAILED, reason=failure[:1024])
            else:
                known = known.with_trial(replace(trial, made=True))
            self.shelf.save(replace(known, modified=time.time()))
        return not failure
