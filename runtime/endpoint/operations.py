"""SageMaker's operations on training jobs: a dict in, a dict out, modelled errors raised. Nothing here knows HTTP."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotfire.runtime import description, preparation, runner, service
from hotfire.runtime.endpoint import listing, search, tags, updates, waiting
from hotfire.runtime.endpoint.admission import Capacity, Ticket
from hotfire.runtime.endpoint.index import Index, Mark, Row, mark_of
from hotfire.runtime.endpoint.model import Model
from hotfire.runtime.endpoint.paging import page
from hotfire.runtime.endpoint.rules import Choice, Rules
from hotfire.runtime.endpoint.tuning.operations import TuningOperations
from hotfire.runtime.endpoint.tuning.record import Shelf
from hotfire.runtime.endpoint.tuning.tuner import Tuner
from hotfire.runtime.errors import (
    ResourceInUse,
    ResourceLimitExceeded,
    ResourceNotFound,
    UnsupportedError,
    ValidationError,
)
from hotfire.runtime.events import Event, Note
from hotfire.runtime.layout import JobDir
from hotfire.runtime.store import JobLock
from hotfire.runtime.surroundings import Surroundings

Answer = dict[str, Any]
_UPDATES = JobDir(Path()).updates.name
_MEMORY = 8192
"""Described jobs that are kept."""
# Asked most, and made of what travels already.
_TRAVELLING = ("DescribeTrainingJob", "ListTrainingJobs")


class Operations:
    """The training-job operations of one store. Safe to call from several threads."""

    def __init__(self, around: Surroundings, rules: Rules, capacity: Capacity) -> None:
        self._around = around
        self._rules = rules
        self._capacity = capacity
        self._jobs = str(around.store.jobs)
        self._admission = waiting.admission(around, capacity)
        self._methods: dict[str, Callable[[Answer, str], Answer]] = {
            "CreateTrainingJob": self._create,
            "DescribeTrainingJob": self._describe,
            "ListTrainingJobs": self._list,
            "StopTrainingJob": self._stop,
            "UpdateTrainingJob": self._update,
            "DeleteTrainingJob": self._delete,
            "ListTags": self._list_tags,
            "AddTags": self._add_tags,
            "DeleteTags": self._delete_tags,
            "Search": self._search,
        }
        self.index = Index(around.store)
        self.tuner = Tuner(
            Shelf(around.store.home), around.store, self.index, self._create_once, self._end
        )
        self._tuning = TuningOperations(self.tuner, self._prepare)
        self._methods |= self._tuning.methods
        self.model = Model.load(tuple(self._methods))
        self._described: dict[tuple[str, str], tuple[Mark, Mark, Answer]] = {}
        self._lock = threading.Lock()

    @property
    def carried_out(self) -> tuple[str, ...]:
        """Names of the operations."""
        return tuple(self._methods)

    def handle(self, operation: str, document: Mapping[str, Any], region: str) -> Answer:
        """Carry out one operation.

        Args:
            document: the request, as JSON holds it: times are numbers of seconds since the epoch.
            region: of the caller; in ARNs. Every region sees all jobs.

        Raises:
            UnsupportedError: an operation of SageMaker that is not carried out here.
            HotfireError: the errors of the operation; ``api_code`` is what the client sees.
        """
        method = self._methods.get(operation)
        if method is None:
            raise UnsupportedError(
                f"{operation} is not available at this endpoint, which runs training jobs and tunes them.",
                do="Point this client at AWS for it.",
            )
        if operation != "CreateTrainingJob":  # whose own parser knows more than the model
            document = self.model.check(operation, document)
        with _as_the_service_says():
            answer = method(dict(document), region)
        return answer if operation in _TRAVELLING else self.model.answer(operation, answer)

    def _in(self, region: str) -> Surroundings:
        return replace(self._around, environ={**self._around.environ, "AWS_REGION": region})

    # Create, stop, change

    def _prepare(self, asked: Answer, region: str) -> tuple[runner.Preparation, Choice, list[str]]:
        """What a request becomes here, and the first lines of its log; refuses what cannot be carried out."""
        choice = self._rules.choose(asked)
        lines = [f"hotfire: {note}" for note in choice.notes]

        def observe(event: Event) -> None:
            if isinstance(event, Note):
                lines.append(f"hotfire: {'warning: ' * event.warning}{event.text}")

        request = copy.deepcopy(asked)
        if choice.image:
            request["AlgorithmSpecification"]["TrainingImage"] = choice.image
        return (
            preparation.prepare(request, choice.options, self._in(region), observe),
            choice,
            lines,
        )

    def _create(self, asked: Answer, region: str) -> Answer:
        prepared, choice, lines = self._prepare(asked, region)
        with self._place(self._memory_of(prepared, lines)) as place:
            job_dir = waiting.start(
                prepared,
                choice.options,
                self._in(region),
                capacity=self._capacity,
                place=place,
                banner=lines,
            )
        if choice.image:
            updates.keep(job_dir, {"AlgorithmSpecification": asked["AlgorithmSpecification"]})
        return {"TrainingJobArn": prepared.job.training_job_arn}

    def _create_once(self, asked: Answer, region: str, more: Mapping[str, Any]) -> None:
        """A training job of a tuning job; its name is nobody else's, so one that is there was made before."""
        with contextlib.suppress(ResourceInUse):
            self._create(asked, region)
        updates.keep(self._around.store.open(asked["TrainingJobName"]), more)

    def _end(self, name: str) -> None:
        service.stop(name, self._around)

    @contextlib.contextmanager
    def _place(self, memory_gib: float) -> Iterator[JobLock | Ticket]:
        """A share or a ticket, which the job's process takes over.

        Raises:
            ResourceLimitExceeded: there is no room and nobody may wait, or there will never be room.
        """
        place = self._admission.enter(memory_gib) or self._queue_up(memory_gib)
        try:
            yield place
        except BaseException:
            place.close()
            raise
        (place if isinstance(place, JobLock) else place.lock).close()

    def _queue_up(self, memory_gib: float) -> Ticket:
        if self._capacity.wait:
            return self._admission.queue_up(memory_gib)
        delta = f"{memory_gib:g} GiB" if self._capacity.memory_gib is not None else "1 Jobs"
        raise ResourceLimitExceeded(
            f"The account-level service limit 'training jobs at once at this endpoint' is {self._capacity}, which are in "
            f"use, with a request delta of {delta}."
        )

    def _memory_of(self, prepared: runner.Preparation, lines: list[str]) -> float:
        """GiB that the instances of a job have together, where memory is counted.

        Raises:
            ResourceLimitExceeded: more than there is.
        """
        if self._capacity.memory_gib is None:
            return 0.0
        total = 0.0
        for group in prepared.job.resource_config.instance_groups:
            each = self._rules.memory_gib(group.instance_type)
            if each is None:
                lines.append(
                    f"hotfire: the memory of {group.instance_type} is not known and does not count; a rule may say it"
                )
            total += group.instance_count * (each or 0)
        if not self._capacity.holds(total):
            raise ResourceLimitExceeded(
                f"The account-level service limit 'memory at this endpoint' is {self._capacity.memory_gib:g} GiB, and the "
                f"job's instances have {total:g} GiB."
            )
        return total

    def _stop(self, asked: Answer, region: str) -> Answer:
        try:
            self._end(asked["TrainingJobName"])
        except ResourceInUse as error:
            # ResourceInUse is no error of this operation; the service refuses it as invalid (contract 9.2).
            raise ValidationError(error.what) from error
        return {}

    def _delete(self, asked: Answer, region: str) -> Answer:
        service.delete(asked["TrainingJobName"], self._around)
        return {}

    def _update(self, asked: Answer, region: str) -> Answer:
        row = self.index.row(asked.pop("TrainingJobName"))
        updates.check(asked, row.record)
        known = self._known(row, region)
        with self._lock:
            updates.apply(asked, known, self._around.store.open(row.name))
        return {"TrainingJobArn": known["TrainingJobArn"]}

    # Look

    def _describe(self, asked: Answer, region: str) -> Answer:
        return self._known(self.index.row(asked["TrainingJobName"]), region)

    def _known(self, row: Row, region: str) -> Answer:
        """A described job as it travels, from memory where nothing on disk has changed. Not to be altered."""
        key = (row.name, region)
        changed = mark_of(f"{self._jobs}/{row.name}/{_UPDATES}")
        known = self._described.get(key)
        if known and known[:2] == (row.mark, changed):
            return known[2]
        found = description.describe(row.name, self._in(region), masked=False)
        found |= updates.read(self._around.store.open(row.name))
        # The SDK's analytics looks at it without asking whether it is there.
        found["AlgorithmSpecification"] = {"MetricDefinitions": []} | found[
            "AlgorithmSpecification"
        ]
        found = self.model.answer("DescribeTrainingJob", found)
        with self._lock:
            if len(self._described) >= _MEMORY:
                self._described.clear()
            self._described[key] = (row.mark, changed, found)
        return found

    def _with_tags(self, row: Row, region: str) -> Answer:
        held = tags.listed(tags.read(self._around.store.open(row.name)))
        return {**self._known(row, region), "Tags": held}

    def _list(self, asked: Answer, region: str) -> Answer:
        rows, token = listing.training_jobs(self.index.rows(), asked)
        found = [self._summary(row, region) for row in rows]
        return {"TrainingJobSummaries": found} | ({"NextToken": token} if token else {})

    def _summary(self, row: Row, region: str) -> Answer:
        record = row.record
        ended = record.training_end_time
        if ended is None and record.status.terminal:
            ended = record.visits[-1].start
        return {
            "TrainingJobName": row.name,
            "TrainingJobArn": self._known(row, region)["TrainingJobArn"],
            "CreationTime": row.created,
            "LastModifiedTime": row.modified,
            "TrainingJobStatus": row.status,
            "SecondaryStatus": record.secondary_status.value,
        } | ({"TrainingEndTime": ended.timestamp()} if ended and record.status.terminal else {})

    def _search(self, asked: Answer, region: str) -> Answer:
        if asked["Resource"] != "TrainingJob":
            raise UnsupportedError(f"Search: this endpoint has no {asked['Resource']}.")
        expression = asked.get("SearchExpression", {})
        jobs = [self._with_tags(row, region) for row in self.index.rows()]
        found = [job for job in jobs if search.matches(expression, job)]
        by = asked.get("SortBy", "LastModifiedTime")

        def key(job: Answer) -> tuple[Any, ...]:
            value = next(search.values(job, by), None)
            # Numbers before texts, so that any two can be compared.
            number = isinstance(value, int | float)
            return (not number, value if number else str(value), job["TrainingJobName"])

        told, token = page(
            found,
            key,
            descending=asked.get("SortOrder", "Descending") == "Descending",
            limit=asked.get("MaxResults", listing.DEFAULT_PAGE),
            token=asked.get("NextToken"),
            question={"expression": expression, "by": by, "order": asked.get("SortOrder")},
        )
        return {"Results": [{"TrainingJob": job} for job in told]} | (
            {"NextToken": token} if token else {}
        )

    # Tags

    def _tagged(self, arn: str) -> JobDir:
        kind, _, name = arn.split(":", 5)[5].partition("/")
        if kind == "hyper-parameter-tuning-job":
            return self.tuner.shelf.directory(self._tuning.get(name).name)
        if kind != "training-job":
            raise UnsupportedError(
                f"{arn}: only training jobs and tuning jobs have tags at this endpoint."
            )
        return self._around.store.open(self.index.by_arn_name(name))

    def _list_tags(self, asked: Answer, region: str) -> Answer:
        found = tags.listed(tags.read(self._tagged(asked["ResourceArn"])))
        told, token = page(
            list(enumerate(found)),
            lambda pair: (pair[0],),
            descending=False,
            limit=asked.get("MaxResults", tags.LIMIT),
            token=asked.get("NextToken"),
            question={"arn": asked["ResourceArn"]},
        )
        return {"Tags": [tag for _, tag in told]} | ({"NextToken": token} if token else {})

    def _add_tags(self, asked: Answer, region: str) -> Answer:
        with self._lock:
            return {
                "Tags": tags.listed(tags.add(self._tagged(asked["ResourceArn"]), asked["Tags"]))
            }

    def _delete_tags(self, asked: Answer, region: str) -> Answer:
        with self._lock:
            tags.remove(self._tagged(asked["ResourceArn"]), asked["TagKeys"])
        return {}


@contextlib.contextmanager
def _as_the_service_says() -> Iterator[None]:
    """The store's words for a missing job name a directory; the service's are known (contract 9.2)."""
    try:
        yield
    except ResourceNotFound as error:
        raise ResourceNotFound("Requested resource not found.") from error
