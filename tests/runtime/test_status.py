"""Statuses: the whole table of moves, and the record as a value."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.runtime.errors import PlatformError
from hotfire.runtime.status import NEXT, JobRecord, SecondaryStatus, TrainingJobStatus

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
S = SecondaryStatus


def record(*path: SecondaryStatus) -> JobRecord:
    made = JobRecord(name="job", creation_time=NOW)
    for seconds, status in enumerate(path):
        made = made.moved(status, status.value, NOW + timedelta(seconds=seconds))
    return made


@pytest.mark.parametrize(("before", "after"), list(itertools.product(S, S)))
def test_every_pair_is_either_in_the_table_or_refused(
    before: SecondaryStatus, after: SecondaryStatus
) -> None:
    start = record(before)
    same = before is after and not before.terminal
    if same or after in NEXT[before]:
        assert start.moved(after, "", NOW).secondary_status is after
    else:
        with pytest.raises(PlatformError, match=f"from {before} to {after}"):
            start.moved(after, "", NOW)


@given(st.lists(st.tuples(st.sampled_from(list(S)), st.integers(-5, 5)), max_size=12))
def test_any_walk_leaves_a_record_that_makes_sense(
    steps: list[tuple[SecondaryStatus, int]],
) -> None:
    made, now = record(S.STARTING), NOW
    for status, seconds in steps:
        now += timedelta(seconds=seconds)
        try:
            made = made.moved(status, "x", now)
        except PlatformError:
            continue
    assert JobRecord.from_json(made.to_json()) == made
    for visit, following in itertools.pairwise(made.visits):
        assert visit.end == following.start
        assert visit.start <= following.start
        assert following.status in NEXT[visit.status]
    last = made.visits[-1]
    assert (last.end == last.start) if last.status.terminal else last.end is None
    assert made.status.terminal == last.status.terminal


def test_a_message_is_replaced_in_place() -> None:
    made = record(S.STARTING).moved(
        S.STARTING, "Preparing the instances for training", NOW + timedelta(seconds=9)
    )
    (visit,) = made.visits
    assert (visit.start, visit.message) == (NOW, "Preparing the instances for training")


def test_a_stopping_job_stays_stopping_while_it_uploads() -> None:
    made = record(S.STARTING, S.DOWNLOADING, S.TRAINING, S.STOPPING, S.UPLOADING)
    assert made.status is TrainingJobStatus.STOPPING
    ended = made.moved(S.MAX_RUNTIME_EXCEEDED, "", NOW + timedelta(seconds=9))
    assert ended.status is TrainingJobStatus.STOPPED


def test_training_seconds_are_at_least_one() -> None:
    made = JobRecord(name="job", creation_time=NOW, training_start_time=NOW, training_end_time=NOW)
    assert made.training_seconds == 1
    assert record(S.STARTING).training_seconds is None
