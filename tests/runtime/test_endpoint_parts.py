"""The pure parts of the endpoint: pages, searches, images, rules, slots."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.endpoint import images, rules, search
from hotfire.runtime.endpoint.admission import Admission, Capacity
from hotfire.runtime.endpoint.paging import page
from hotfire.runtime.errors import ValidationError
from hotfire.runtime.surroundings import Options
from hotfire.runtime.traits import Walk

ECR = "763104351884.dkr.ecr.us-west-2.amazonaws.com"


@pytest.mark.parametrize("descending", [False, True])
def test_pages_of_rows_that_come_and_go(descending: bool) -> None:
    """What stays is told once; what is there from the beginning is not missed."""
    generator = random.Random(5)
    stay = set(range(0, 200, 2))
    rows = set(stay)
    told: list[int] = []
    token = None
    while True:
        found, token = page(
            sorted(rows),
            lambda row: (row // 10, str(row)),
            descending=descending,
            limit=7,
            token=token,
            question={"q": 1},
        )
        told += found
        if token is None:
            break
        rows = stay | set(generator.sample(range(1, 200, 2), 20))
    assert len(told) == len(set(told))
    assert set(told) >= stay
    assert [(row // 10, str(row)) for row in told] == sorted(
        [(row // 10, str(row)) for row in told], reverse=descending
    )


@pytest.mark.parametrize("value", [True, "0.5", [], float("inf"), float("nan"), 10**400])
def test_what_is_no_number(value: object) -> None:
    shapes = {
        "Root": {"type": "structure", "members": {"Loss": "Loss"}},
        "Loss": {"type": "float"},
    }
    assert not list(Walk(shapes).check({"Loss": 0.5}, "Root"))
    assert not list(Walk(shapes).check({"Loss": -2}, "Root"))
    (fault,) = Walk(shapes).check({"Loss": value}, "Root")
    assert "Member must be a number" in str(fault)


JOB: dict[str, Any] = {
    "TrainingJobName": "one",
    "TrainingJobStatus": "Completed",
    "CreationTime": 1_700_000_000.5,
    "EnableManagedSpotTraining": True,
    "HyperParameters": {"a.b": "0.1"},
    "ResourceConfig": {"InstanceCount": 2},
    "InputDataConfig": [
        {"ChannelName": "train", "DataSource": {"S3DataSource": {"S3Uri": "s3://b/t"}}},
        {"ChannelName": "test", "DataSource": {"S3DataSource": {"S3Uri": "s3://b/e"}}},
    ],
    "FinalMetricDataList": [{"MetricName": "loss", "Value": 0.5}],
    "Tags": [{"Key": "team", "Value": "red"}],
}


def one(name: str, operator: str, *value: str) -> dict[str, Any]:
    return {
        "Filters": [{"Name": name, "Operator": operator, **({"Value": value[0]} if value else {})}]
    }


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ({}, True),
        (one("TrainingJobName", "Equals", "one"), True),
        (one("TrainingJobName", "NotEquals", "one"), False),
        (one("TrainingJobName", "Contains", "N"), True),
        (one("TrainingJobStatus", "In", "Failed, Completed"), True),
        (one("Tags.team", "Equals", "red"), True),
        (one("Tags.team", "NotExists"), False),
        (one("Tags.other", "NotExists"), True),
        (one("Metrics.loss", "LessThan", "0.6"), True),
        (one("Metrics.loss", "GreaterThanOrEqualTo", "0.5"), True),
        (one("HyperParameters.a.b", "LessThanOrEqualTo", "0.1"), True),
        (one("ResourceConfig.InstanceCount", "GreaterThan", "2"), False),
        (one("CreationTime", "GreaterThan", "2023-11-14T00:00:00+00:00"), True),
        (one("CreationTime", "LessThan", "no date"), False),
        (one("EnableManagedSpotTraining", "Equals", "true"), True),
        (one("InputDataConfig.ChannelName", "Equals", "test"), True),
        ({"SubExpressions": [one("TrainingJobName", "Equals", "two"), {}], "Operator": "Or"}, True),
        ({"SubExpressions": [one("TrainingJobName", "Equals", "two"), {}]}, False),
    ],
)
def test_searches(expression: dict[str, Any], fits: bool) -> None:
    assert search.matches(expression, JOB) is fits


def test_nested_filters_hold_for_one_item() -> None:
    def nested(channel: str, uri: str) -> dict[str, Any]:
        root = "InputDataConfig"
        filters = [
            {"Name": f"{root}.ChannelName", "Operator": "Equals", "Value": channel},
            {"Name": f"{root}.DataSource.S3DataSource.S3Uri", "Operator": "Contains", "Value": uri},
        ]
        return {"NestedFilters": [{"NestedPropertyName": root, "Filters": filters}]}

    assert search.matches(nested("train", "b/t"), JOB)
    assert not search.matches(nested("train", "b/e"), JOB)


def test_searches_without_a_meaning_are_refused() -> None:
    with pytest.raises(ValidationError):
        search.matches(one("Tags.team", "Equals"), JOB)
    deep: dict[str, Any] = {}
    for _ in range(50):
        deep = {"SubExpressions": [deep]}
    with pytest.raises(ValidationError):
        search.matches(deep, JOB)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        (
            f"{ECR}/pytorch-training:2.1.0-gpu-py310-cu121-ubuntu20.04-sagemaker",
            "PyTorch 2.1.0, GPU, Python 3.10",
        ),
        (
            f"{ECR}/pytorch-training-neuronx:2.1.2-neuronx-py310-sdk2.20.0-ubuntu20.04",
            "PyTorch 2.1.2, Neuron, Python 3.10",
        ),
        (
            f"{ECR}/huggingface-pytorch-training-neuronx:2.1.2-transformers4.43.2-neuronx-py310-sdk2.20.0",
            "PyTorch 2.1.2, Transformers 4.43.2, Neuron, Python 3.10",
        ),
        (
            f"{ECR}.cn/huggingface-pytorch-trcomp-training:1.9.0-transformers4.11.0-gpu-py38-cu111",
            "PyTorch 1.9.0, Transformers 4.11.0, Training Compiler, GPU, Python 3.8",
        ),
        (f"{ECR}/tensorflow-training:2.14.1-cpu-py310", "TensorFlow 2.14.1, CPU, Python 3.10"),
        (f"{ECR}/pytorch-inference:2.1.0-gpu-py310", None),
        ("pytorch-training:2.1.0-gpu-py310", None),
        ("", None),
    ],
)
def test_names_of_images(uri: str, said: str | None) -> None:
    found = images.container(uri)
    assert (str(found) if found else None) == said


def test_rules_add_up_and_the_first_fitting_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        "instances:\n"
        "  ml.trn1.2xlarge: {backend: docker, limits: true}\n"
        "  ml.trn1.*: {processes_per_host: 2}\n"
        "images:\n"
        "  '*/pytorch-training*': {image: 'mine:1'}\n"
    )
    found = rules.load(path, Options(python="/usr/bin/python3"))

    def choose(kind: str, image: str) -> rules.Choice:
        return found.choose(
            {
                "AlgorithmSpecification": {"TrainingImage": image},
                "ResourceConfig": {"InstanceGroups": [{"InstanceType": kind}]},
            }
        )

    first = choose("ml.trn1.2xlarge", f"{ECR}/pytorch-training:2.1.0-gpu-py310")
    assert (first.options.backend, first.options.limits, first.image) == ("docker", True, "mine:1")
    assert first.options.processes_per_host is None
    assert "the job runs in containers of mine:1" in first.notes[0]
    second = choose("ml.trn1.32xlarge", "other:1")
    assert (second.options.backend, second.options.processes_per_host) == ("process", 2)
    assert "as a process of this machine with /usr/bin/python3" in second.notes[0]
    assert found.choose({"AlgorithmSpecification": 5, "ResourceConfig": []}).notes == ()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "other: {}",
        "instances: {x: {colour: red}}",
        "images: {x: {limits: 1}}",
        "images: {x: {memory_gib: 1}}",
        "{",
    ],
)
def test_rules_that_say_something_unknown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(ValidationError):
        rules.load(path, Options())


def test_slots_go_to_those_who_wait_in_order(tmp_path: Path) -> None:
    slots = Admission(tmp_path / "slots", Capacity(jobs=2))
    held = [slots.enter(), slots.enter()]
    assert all(held)
    assert slots.enter() is None
    first, second, third = (slots.queue_up() for _ in range(3))
    assert slots.turn(first) is None
    for slot in held:
        assert slot is not None
        slot.close()
    assert slots.enter() is None  # nobody overtakes
    assert slots.turn(second) is None
    given = slots.turn(first)
    assert given is not None
    second.lock.close()  # whoever waited second has died
    assert slots.turn(third) is not None
    assert slots.enter() is None
    given.close()
    assert slots.enter() is not None


def test_memory_is_shared_out_where_it_is_counted(tmp_path: Path) -> None:
    slots = Admission(tmp_path / "slots", Capacity(jobs=9, memory_gib=64))
    large = slots.enter(48)
    assert large is not None
    assert slots.enter(32) is None
    assert slots.enter(16) is not None
    waiting, small = slots.queue_up(32), slots.queue_up(0)
    assert slots.turn(waiting) is None
    assert slots.turn(small) is None  # nobody overtakes
    large.close()
    assert slots.turn(waiting) is not None
    assert slots.turn(small) is not None


def test_memory_of_instance_types(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("instances:\n  ml.m5.*: {memory_gib: 8}\n")
    found = rules.load(path, Options())
    assert found.memory_gib("ml.m5.large") == 8
    assert found.memory_gib("ml.g5.2xlarge") == 32
    assert found.memory_gib("ml.c5.large") is None
    asked = {"ResourceConfig": {"InstanceType": "ml.m5.large"}}
    assert found.choose(asked).options == Options()
