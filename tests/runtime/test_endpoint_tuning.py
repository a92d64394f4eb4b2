"""Tuning jobs as values: ranges, what is tried next, and the rules over what training jobs came to."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.endpoint.index import Index
from hotfire.runtime.endpoint.tuning import outcomes, ranges
from hotfire.runtime.endpoint.tuning.record import Record, Shelf, Trial
from hotfire.runtime.endpoint.tuning.strategies import Strategy, Tried
from hotfire.runtime.endpoint.tuning.tuner import Tuner
from hotfire.runtime.errors import ResourceInUse, ResourceLimitExceeded, ValidationError
from hotfire.runtime.store import Store

RATE = {"Name": "lr", "MinValue": "0.0001", "MaxValue": "1.0", "ScalingType": "Logarithmic"}


def number(**members: str) -> ranges.Number:
    kind = members.pop("kind", "ContinuousParameterRanges")
    (found,) = ranges.parse({kind: [{"Name": "x", **members}]}, {})
    assert isinstance(found, ranges.Number)
    return found


def test_a_range_is_searched_on_its_own_scale() -> None:
    assert number(MinValue="2", MaxValue="4").value(0.25) == "2.5"
    logarithmic = number(MinValue="0.001", MaxValue="10", ScalingType="Logarithmic")
    assert float(logarithmic.value(0.5)) == pytest.approx(0.1)
    reverse = number(MinValue="0", MaxValue="0.999", ScalingType="ReverseLogarithmic")
    assert float(reverse.value(2 / 3)) == pytest.approx(0.99)
    for one in (logarithmic, reverse):
        assert (float(one.value(0)), float(one.value(1))) == pytest.approx((one.low, one.high))
    # Auto: logarithmic from two orders of magnitude on.
    assert number(MinValue="0.01", MaxValue="1").scaling == "Logarithmic"
    assert number(MinValue="0.02", MaxValue="1").scaling == "Linear"
    assert number(MinValue="3", MaxValue="3").value(0.7) == "3.0"


@pytest.mark.parametrize("scaling", ["Linear", "Logarithmic"])
def test_whole_numbers_include_both_ends(scaling: str) -> None:
    one = number(kind="IntegerParameterRanges", MinValue="1", MaxValue="4", ScalingType=scaling)
    shares = [step / 1000 for step in range(1001)]
    assert {one.value(share) for share in shares} == {"1", "2", "3", "4"}


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({}, "names no hyperparameter"),
        ({"ContinuousParameterRanges": [{**RATE, "MinValue": "0"}]}, "greater than 0"),
        ({"ContinuousParameterRanges": [{**RATE, "MinValue": "2"}]}, "above MaxValue"),
        ({"ContinuousParameterRanges": [{**RATE, "MinValue": "low"}]}, '"low" is not a number'),
        ({"ContinuousParameterRanges": [{**RATE, "MaxValue": "inf"}]}, "not a number"),
        ({"ContinuousParameterRanges": [{**RATE, "MaxValue": "1e308"}]}, "too wide"),
        ({"IntegerParameterRanges": [RATE]}, "not a whole number"),
        ({"ContinuousParameterRanges": [RATE, RATE]}, "more than one range"),
        ({"CategoricalParameterRanges": [{"Name": "fixed", "Values": ["a"]}]}, "is both static"),
        (
            {"ContinuousParameterRanges": [{**RATE, "ScalingType": "ReverseLogarithmic"}]},
            "below 1",
        ),
    ],
)
def test_ranges_that_mean_nothing_are_refused(raw: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        ranges.parse(raw, {"fixed": "1"})


def strategy(kind: str, seed: int = 7) -> Strategy:
    choice = {"Name": "how", "Values": ["well", "badly"]}
    raw: dict[str, Any] = {"CategoricalParameterRanges": [choice]}
    if kind == "Grid":
        raw["CategoricalParameterRanges"].append({"Name": "size", "Values": ["1", "2", "3"]})
    else:
        raw["ContinuousParameterRanges"] = [RATE]
    return Strategy(kind=kind, ranges=ranges.parse(raw, {}), seed=seed, minimise=True)


def test_a_grid_has_every_combination_once() -> None:
    grid = strategy("Grid")
    assert grid.points == 6
    found = [tuple(grid.suggest(number, ()).values()) for number in range(6)]
    assert len(set(found)) == 6
    with pytest.raises(ValidationError, match="categorical"):
        Strategy(kind="Grid", ranges=strategy("Random").ranges, seed=1, minimise=True)


def test_random_points_follow_from_seed_and_number_alone() -> None:
    points = [strategy("Random").suggest(number, ()) for number in range(200)]
    assert points[5] == strategy("Random").suggest(5, [Tried(point=points[0], value=1.0)])
    assert points != [strategy("Random", seed=8).suggest(number, ()) for number in range(200)]
    values = [ranges.values(strategy("Random").ranges, point) for point in points]
    assert {value["how"] for value in values} == {"well", "badly"}
    # Half of them below the middle of the logarithmic scale.
    assert 70 < sum(float(value["lr"]) < 0.01 for value in values) < 130


def test_bayesian_search_goes_where_the_objective_is_good() -> None:
    search = strategy("Bayesian")
    tried: list[Tried] = []
    losses = []
    for count in range(40):
        point = search.suggest(count, tried)
        assert point == search.suggest(count, tried)
        share = point["lr"]
        assert isinstance(share, float)
        loss = (share - 0.3) ** 2 + (point["how"] == "badly")
        losses.append(loss)
        tried.append(Tried(point=point, value=loss))
    chance = random.Random(1)
    by_chance = [(chance.random() - 0.3) ** 2 + chance.choice([0, 1]) for _ in range(1000)]
    assert statistics.fmean(losses[20:]) < statistics.fmean(by_chance) / 2
    assert min(losses) < 0.001


def test_parallel_jobs_do_not_try_the_same() -> None:
    search = strategy("Bayesian")
    tried = [
        Tried(point={"lr": share / 10, "how": "well"}, value=abs(share / 10 - 0.5))
        for share in range(11)
    ]
    shares = []
    for number in range(len(tried), len(tried) + 4):
        point = search.suggest(number, tried)
        shares.append(point["lr"])
        tried.append(Tried(point=point, value=None))
    assert len({round(float(share), 3) for share in shares}) == 4


def test_the_median_rule() -> None:
    ended = [[4.0, 2.0, 1.0], [4.0, 3.0, 2.0], [6.0, 6.0, 6.0]]
    # Averages of the first two values are 3, 3.5 and 6.
    assert outcomes.hopeless([9.0, 3.6], ended, minimise=True)
    assert not outcomes.hopeless([9.0, 3.4], ended, minimise=True)
    assert outcomes.hopeless([9.0, 3.4], ended, minimise=False)
    assert not outcomes.hopeless([], ended, minimise=True)
    assert not outcomes.hopeless([9.0], ended[:2], minimise=True)  # too few to tell
    assert not outcomes.hopeless([9.0] * 4, ended, minimise=True)  # nobody came so far


def result(value: float | None, status: str = "Completed", reason: str = "") -> dict[str, Any]:
    final = {"FinalHyperParameterTuningJobObjectiveMetric": {"MetricName": "m", "Value": value}}
    return {
        "TrainingJobName": f"job-{value}",
        "TrainingJobStatus": status,
        "ObjectiveStatus": "Failed" if value is None or status == "Failed" else "Succeeded",
        "TrainingEndTime": 0.0,
        "FailureReason": reason,
    } | (final if value is not None else {})


def of(*results: dict[str, Any]) -> Record:
    trials = tuple(
        Trial(name=f"t-{at}", point={}, parameters={}, made=True, result=found)
        for at, found in enumerate(results)
    )
    return Record(name="t", region="us-east-1", seed=1, created=0, modified=0, trials=trials)


def test_counters_and_the_best() -> None:
    found = [
        result(3.0),
        result(1.0, "Stopped"),
        result(0.5, "Failed", "InternalServerError: x"),
        result(None, "Failed", "AlgorithmError: y"),
        {"TrainingJobName": "n", "TrainingJobStatus": "Stopping", "ObjectiveStatus": "Pending"},
        result(2.0),
    ]
    jobs, objectives = outcomes.counters(found)
    assert jobs == {
        "Completed": 2,
        "InProgress": 1,
        "RetryableError": 1,
        "NonRetryableError": 1,
        "Stopped": 1,
    }
    assert objectives == {"Succeeded": 3, "Pending": 1, "Failed": 2}
    best = [outcomes.best(found, minimise=minimise) for minimise in (True, False)]
    assert [one and one["TrainingJobName"] for one in best] == ["job-2.0", "job-3.0"]
    assert outcomes.best(found[1:5], minimise=True) is None


def test_improvements_of_less_than_a_percent_do_not_count() -> None:
    record = of(*(result(value) for value in (1.0, 0.995, 2.0, 0.98, 0.979)))
    assert outcomes.not_improving(record, minimise=True) == 1
    assert outcomes.not_improving(record, minimise=False) == 2


def test_a_tuning_job_fails_when_no_objective_comes() -> None:
    nothing = result(None)
    broken = result(None, "Failed", "AlgorithmError: y")
    assert outcomes.barren(of(*[nothing] * 4), limit=9) == ""
    assert "No objective metrics found after running 5" in outcomes.barren(of(*[nothing] * 5), 9)
    assert outcomes.barren(of(broken, broken), 2).endswith("AlgorithmError: y")
    assert outcomes.barren(of(broken, nothing, result(1.0)), 3) == ""


def test_records_are_read_again_and_names_ignore_case(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    record = of(result(1.0)).with_trial(Trial(name="new", point={"x": 0.5}, parameters={"x": "1"}))
    shelf.create(record, {"Tags": []})
    with pytest.raises(ResourceInUse):
        shelf.create(record, {})
    (tmp_path / "tuning" / "broken").mkdir()
    (tmp_path / "tuning" / "broken" / "record.json").write_text("{")
    again = Shelf(tmp_path)
    assert again.get("T") == record
    again.remove("t")
    assert Shelf(tmp_path).records() == []


REQUEST: dict[str, Any] = {
    "HyperParameterTuningJobName": "t",
    "HyperParameterTuningJobConfig": {
        "Strategy": "Random",
        "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
        "ResourceLimits": {"MaxNumberOfTrainingJobs": 3, "MaxParallelTrainingJobs": 1},
        "ParameterRanges": {"ContinuousParameterRanges": [RATE]},
    },
    "TrainingJobDefinition": {
        "AlgorithmSpecification": {"MetricDefinitions": [{"Name": "loss", "Regex": "x"}]},
        "RoleArn": "arn:aws:iam::123456789012:role/hotfire",
        "CheckpointConfig": {"S3Uri": "s3://b/checkpoints/"},
    },
}


class Killed(BaseException):
    """In the place of the end of the process."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Killed(), "InProgress"),
        (ResourceLimitExceeded("no room"), "InProgress"),
        (ValidationError("the data is not there any more"), "Failed"),
    ],
)
def test_a_training_job_that_cannot_be_created(
    tmp_path: Path, error: BaseException, status: str
) -> None:
    """Whoever is killed creates the same one again; no room means to wait; anything else is the end."""
    store = Store(tmp_path)
    created: list[dict[str, Any]] = []

    def create(request: dict[str, Any], region: str, more: object) -> None:
        created.append(request)
        raise error

    def step() -> Record:
        shelf = Shelf(tmp_path)
        try:
            Tuner(shelf, store, Index(store), create, lambda name: None).step()
        except Killed:
            shelf = Shelf(tmp_path)
        return shelf.records()[0]

    record = Record(name="t", region="us-east-1", seed=1, created=0, modified=0)
    Shelf(tmp_path).create(record, REQUEST)
    step()
    after = step()
    assert after.status == status
    names = {request["TrainingJobName"] for request in created}
    assert len(names) == 1
    assert created[0]["CheckpointConfig"]["S3Uri"] == f"s3://b/checkpoints/{names.pop()}"
    assert created[0]["HyperParameters"]["_tuning_objective_metric"] == "loss"
    if status == "Failed":
        assert after.reason == "the data is not there any more"
        assert len(created) == 1
    else:
        assert len(created) == 2
