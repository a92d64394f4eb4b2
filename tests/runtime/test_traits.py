"""The walk along the service model, against botocore's own validator."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hotfire.runtime import service_model, traits
from hotfire.runtime.service_model import ROOT

SHAPES = service_model.load()


@pytest.fixture(scope="module")
def botocore_faults() -> Any:
    """The types, required members, unknown members and minima that botocore complains of, as a report's text."""
    from botocore.session import Session
    from botocore.validate import ParamValidator

    model: Any = Session().get_service_model("sagemaker").operation_model("CreateTrainingJob")
    return lambda raw: ParamValidator().validate(raw, model.input_shape).generate_report()


def strings(shape: dict[str, Any]) -> st.SearchStrategy[str]:
    if "enum" in shape:
        return st.sampled_from(shape["enum"])
    low, high = shape.get("min", 0), min(shape.get("max", 40), shape.get("min", 0) + 24)
    pattern = shape.get("pattern", ".*").replace(r"\p{Alnum}", "a-z")
    pattern = pattern.replace(r"\p{L}\p{Z}\p{N}", "a-z 0-9")
    if pattern in (".*", ".+", r"[\S\s]*"):
        return st.text("abcXYZ019 -_./:", min_size=low, max_size=high)
    # Unbounded parts are cut, so that generated values keep within the lengths.
    return st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True).filter(
        lambda text: low <= len(text) <= shape.get("max", 10**6) and "\n" not in text
    )


def values(name: str) -> st.SearchStrategy[Any]:
    """Valid values of a shape."""
    shape = dict(SHAPES[name])
    match shape["type"]:
        case "string":
            return strings(shape)
        case "boolean":
            return st.booleans()
        case "integer" | "long":
            low = shape.get("min", -5)
            return st.integers(low, min(shape.get("max", low + 1000), low + 1000))
        case "list":
            low = shape.get("min", 0)
            high = min(low + 1, shape.get("max", low + 1))
            return st.lists(values(shape["member"]), min_size=low, max_size=high)
        case "map":
            return st.dictionaries(values(shape["key"]), values(shape["value"]), max_size=2)
    required = set(shape.get("required", ()))
    members = shape["members"].items()
    return st.fixed_dictionaries(
        {member: values(inner) for member, inner in members if member in required},
        optional={member: values(inner) for member, inner in members if member not in required},
    )


REQUESTS = st.deferred(lambda: values(ROOT))
QUICK = settings(
    max_examples=80,
    deadline=None,
    # A failing request is readable as it is; shrinking one takes minutes.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
        HealthCheck.function_scoped_fixture,
    ],
)


@given(raw=REQUESTS)
@QUICK
def test_what_the_model_allows_is_accepted_by_both(raw: Any, botocore_faults: Any) -> None:
    assert traits.Walk(SHAPES).check(raw) == []
    assert botocore_faults(raw) == ""


def members(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in inner:
        found += members(item, (*path, key))
    return found


WRONG: st.SearchStrategy[Any] = st.sampled_from(
    [None, 5, "x", [], {}, [5], {"A": {}}, 1.5, {"a": "b"}]
)


@given(raw=REQUESTS, data=st.data())
@QUICK
def test_types_required_and_unknown_members_as_botocore(
    raw: Any, data: st.DataObject, botocore_faults: Any
) -> None:
    """One value replaced by one of another kind, removed, or added under a name that is not known."""
    raw = copy.deepcopy(raw)
    path = data.draw(st.sampled_from(members(raw)))
    holder = raw
    for step in path[:-1]:
        holder = holder[step]
    change = data.draw(st.sampled_from(["replace", "remove", "add"]))
    if change == "replace":
        holder[path[-1]] = data.draw(WRONG)
    elif change == "remove":
        del holder[path[-1]]
    elif isinstance(holder, dict):
        holder["Unheard"] = "x"
    # botocore knows no maxima, patterns and enums; compare what both know.
    beyond = ("pattern", "enum", "less than or equal")
    ours = [
        fault
        for fault in traits.Walk(SHAPES).check(raw)
        if not any(word in fault.constraint for word in beyond)
    ]
    assert bool(ours) == bool(botocore_faults(raw)), (ours, botocore_faults(raw))


def test_a_boolean_is_no_integer() -> None:
    """Here botocore is the laxer one: Python's True is an int, JSON's true is none."""
    assert traits.Walk(SHAPES).check(True, "TrainingInstanceCount")
    assert not traits.Walk(SHAPES).check(1, "TrainingInstanceCount")


PATTERNS = [
    ("TrainingJobName", "a-1", True),
    ("TrainingJobName", "-a", False),
    ("TrainingJobName", "a-", False),
    ("TrainingJobName", "٣", False),
    ("ArnOrName", "xgboost", True),
    ("RoleArn", "arn:aws-cn:iam::123456789012:role/a/b", True),
    ("RoleArn", "arn:aws:iam::12345678901٣:role/abcdefgh", False),
    (
        "TrainingRepositoryCredentialsProviderArn",
        "arn:aws:lambda:us-east-1:123456789012:function:f",
        True,
    ),
    ("TagKey", "Größe/Ⅷ 5", True),
    ("TagKey", "a!", False),
    ("TrainingEnvironmentKey", "", False),
    ("TrainingEnvironmentValue", "a\nb", True),
    ("HyperParameterValue", "a\nb", False),
    ("SequenceLength", "8K", True),
]


@pytest.mark.parametrize(("shape", "value", "good"), PATTERNS)
def test_patterns_are_matched_whole_and_in_javas_sense(shape: str, value: str, good: bool) -> None:
    faults = traits.Walk(SHAPES).check(value, shape)
    assert (faults == []) is good


def test_every_pattern_of_the_model_compiles() -> None:
    patterns = {shape["pattern"] for shape in SHAPES.values() if "pattern" in shape}
    assert len(patterns) > 20
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for pattern in patterns:
            for value in ("a", "ä"):
                assert traits.matches(pattern, value) in (True, False)


def test_long_values_are_told_short_and_do_not_stall() -> None:
    faults = traits.Walk(SHAPES).check("a/" * 5_000_000, "S3Uri")
    assert [fault.constraint for fault in faults] == [
        "Member must have length less than or equal to 1024"
    ]
    assert len(str(faults[0])) < 300


def test_extensions_hold_for_their_member_alone() -> None:
    walk = traits.Walk(SHAPES, extensions={("OutputDataConfig", "S3OutputPath"): "file://.+"})
    assert not walk.check({"S3OutputPath": "file:///x"}, "OutputDataConfig")
    assert walk.check({"S3OutputPath": "ftp:///x"}, "OutputDataConfig")
    assert walk.check({"S3Uri": "file:///x"}, "CheckpointConfig")
