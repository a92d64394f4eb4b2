"""SageMaker's operations on hyperparameter tuning jobs: a dict in, a dict out, modelled errors raised."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hotfire.runtime.endpoint.listing import DEFAULT_PAGE, PAGING, wanted
from hotfire.runtime.endpoint.paging import Key, page
from hotfire.runtime.endpoint.tuning import outcomes
from hotfire.runtime.endpoint.tuning.outcomes import Summary
from hotfire.runtime.endpoint.tuning.ranges import values
from hotfire.runtime.endpoint.tuning.record import Record
from hotfire.runtime.endpoint.tuning.request import definition_of, parse, resources, static
from hotfire.runtime.endpoint.tuning.tuner import STOPPED, Tuner
from hotfire.runtime.errors import HotfireError, ValidationError

Answer = dict[str, Any]


class TuningJobNotFound(HotfireError):
    """Unlike training jobs, tuning jobs have a modelled error for it."""

    api_code = "ResourceNotFound"


class TuningOperations:
    """``check``: whether a training job's request would be taken, by raising what CreateTrainingJob would."""

    def __init__(self, tuner: Tuner, check: Callable[[Answer, str], object]) -> None:
        self._tuner = tuner
        self._shelf = tuner.shelf
        self._check = check
        self.methods: Mapping[str, Callable[[Answer, str], Answer]] = {
            "CreateHyperParameterTuningJob": self._create,
            "DescribeHyperParameterTuningJob": self._describe,
            "ListHyperParameterTuningJobs": self._list,
            "ListTrainingJobsForHyperParameterTuningJob": self._list_training_jobs,
            "StopHyperParameterTuningJob": self._stop,
            "DeleteHyperParameterTuningJob": self._delete,
        }

    def get(self, name: str) -> Record:
        """Raises TuningJobNotFound when there is none of that name."""
        found = self._shelf.get(name)
        if found is None:
            raise TuningJobNotFound(
                f"Requested resource not found: hyperparameter tuning job {name}."
            )
        return found

    def _create(self, asked: Answer, region: str) -> Answer:
        name = asked["HyperParameterTuningJobName"]
        seed = secrets.randbits(31)
        understood = parse(asked, seed)
        first = values(understood.strategy.ranges, understood.strategy.suggest(0, ()))
        # All faults of the training jobs now, and not when the first one is created.
        self._check(understood.training_job(f"{name}-001-00000000", first), region)
        now = time.time()
        self._shelf.create(
            Record(name=name, region=region, seed=seed, created=now, modified=now), asked
        )
        return {"HyperParameterTuningJobArn": understood.arn(region)}

    def _stop(self, asked: Answer, region: str) -> Answer:
        with self._shelf.lock:
            record = self.get(asked["HyperParameterTuningJobName"])
            if record.terminal:
                raise ValidationError(
                    f"The request was rejected because the hyperparameter tuning job is in status {record.status}."
                )
            stopping = replace(record, ending=STOPPED, status="Stopping", modified=time.time())
            self._shelf.save(stopping)
        return {}

    def _delete(self, asked: Answer, region: str) -> Answer:
        with self._shelf.lock:
            record = self.get(asked["HyperParameterTuningJobName"])
            if not record.terminal:
                raise ValidationError(
                    f"The request was rejected because the hyperparameter tuning job is in status {record.status}."
                )
            self._shelf.remove(record.name)
        return {}

    # Look

    def _describe(self, asked: Answer, region: str) -> Answer:
        record = self.get(asked["HyperParameterTuningJobName"])
        request = self._shelf.request(record.name)
        understood = self._tuner.asked(record)
        minimise = understood.strategy.minimise
        summaries = self._tuner.summaries(record)
        definition = definition_of(request)
        told = {
            **definition,
            "StaticHyperParameters": static(definition, understood.metric),
            # Where it was given in another form as well: SDK 2 sends that one, and attaches by this one.
            "ResourceConfig": resources(definition),
        }
        several = "TrainingJobDefinitions" in request
        found: Answer = {
            **self._known(record, summaries, region),
            "HyperParameterTuningJobConfig": request["HyperParameterTuningJobConfig"],
            **({"TrainingJobDefinitions": [told]} if several else {"TrainingJobDefinition": told}),
            "TuningJobCompletionDetails": {
                "NumberOfTrainingJobsObjectiveNotImproving": outcomes.not_improving(
                    record, minimise=minimise
                )
            },
            "ConsumedResources": {"RuntimeInSeconds": _runtime(record)},
        }
        if top := outcomes.best(summaries, minimise=minimise):
            found["BestTrainingJob"] = understood.with_arn(top, region)
        if record.reason:
            found["FailureReason"] = record.reason
        return found

    def _known(self, record: Record, summaries: list[Summary], region: str) -> Answer:
        """What Describe and List have in common."""
        jobs, objectives = outcomes.counters(summaries)
        return {
            "HyperParameterTuningJobName": record.name,
            "HyperParameterTuningJobArn": self._tuner.asked(record).arn(region),
            "HyperParameterTuningJobStatus": record.status,
            "CreationTime": record.created,
            "LastModifiedTime": record.modified,
            "TrainingJobStatusCounters": jobs,
            "ObjectiveStatusCounters": objectives,
        } | ({"HyperParameterTuningEndTime": record.ended} if record.ended else {})

    def _list(self, asked: Answer, region: str) -> Answer:
        by = asked.get("SortBy", "Name")

        def key(record: Record) -> Key:
            first: Any = {"Name": record.name, "Status": record.status}.get(by, record.created)
            return (first, record.name)

        rows = [one for one in self._shelf.records() if wanted(one, asked)]
        told, token = _page(rows, key, asked)
        found = []
        for record in told:
            config = self._shelf.request(record.name)["HyperParameterTuningJobConfig"]
            known = self._known(record, self._tuner.summaries(record), region)
            rest = {key: config[key] for key in ("Strategy", "ResourceLimits")}
            found.append({**known, **rest})
        return {"HyperParameterTuningJobSummaries": found} | token

    def _list_training_jobs(self, asked: Answer, region: str) -> Answer:
        record = self.get(asked["HyperParameterTuningJobName"])
        by = asked.get("SortBy", "Name")
        rows = [
            one
            for one in self._tuner.summaries(record)
            if asked.get("StatusEquals", one["TrainingJobStatus"]) == one["TrainingJobStatus"]
            and (by != "FinalObjectiveMetricValue" or outcomes.objective(one) is not None)
        ]

        def key(one: Summary) -> Key:
            first: Any = {
                "Name": one["TrainingJobName"],
                "Status": one["TrainingJobStatus"],
                "CreationTime": one["CreationTime"],
                "FinalObjectiveMetricValue": outcomes.objective(one),
            }[by]
            return (first, one["TrainingJobName"])

        told, token = _page(rows, key, asked)
        understood = self._tuner.asked(record)
        return {"TrainingJobSummaries": [understood.with_arn(one, region) for one in told]} | token


def _runtime(record: Record) -> int:
    """Seconds that the training jobs took together."""
    spans = [
        one.result["TrainingEndTime"] - one.result["TrainingStartTime"]
        for one in record.trials
        if one.result and "TrainingStartTime" in one.result
    ]
    return int(sum(spans))


def _page(rows: list[Any], key: Callable[[Any], Key], asked: Answer) -> tuple[list[Any], Answer]:
    told, token = page(
        rows,
        key,
        descending=asked.get("SortOrder", "Ascending") == "Descending",
        limit=asked.get("MaxResults", DEFAULT_PAGE),
        token=asked.get("NextToken"),
        question={name: value for name, value in asked.items() if name not in PAGING},
    )
    return told, {"NextToken": token} if token else {}
