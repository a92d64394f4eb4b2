"""Search over training jobs: the expression as a predicate over described jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hotfire.runtime.endpoint.model import seconds
from hotfire.runtime.errors import ValidationError

Job = Mapping[str, Any]
"""A described job as it travels, with ``Tags``."""

DEPTH = 20
"""How deep expressions may be nested; the service takes 20 conditions in all."""


def matches(expression: Mapping[str, Any], job: Job, depth: int = 0) -> bool:
    """Whether a job fits a SearchExpression.

    Raises:
        ValidationError: an expression that means nothing.
    """
    if depth > DEPTH:
        raise ValidationError("SearchExpression is nested too deeply.")
    parts = [
        *(_filter(one, job) for one in expression.get("Filters", ())),
        *(_nested(one, job) for one in expression.get("NestedFilters", ())),
        *(matches(one, job, depth + 1) for one in expression.get("SubExpressions", ())),
    ]
    return any(parts) if expression.get("Operator") == "Or" and parts else all(parts)


def _nested(nested: Mapping[str, Any], job: Job) -> bool:
    """All filters hold for one and the same item of the list that ``NestedPropertyName`` names."""
    root = nested["NestedPropertyName"]
    items = [item for found in values(job, root) for item in _items(found)]
    inner = [
        {**one, "Name": one["Name"].removeprefix(f"{root}.")} for one in nested.get("Filters", ())
    ]
    return any(
        isinstance(item, Mapping) and all(_filter(one, item) for one in inner) for item in items
    )


def _items(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def _filter(one: Mapping[str, Any], job: Job) -> bool:
    operator = one.get("Operator", "Equals" if "Value" in one else "Exists")
    found = [item for value in values(job, one["Name"]) for item in _items(value)]
    if operator in ("Exists", "NotExists"):
        if "Value" in one:
            raise ValidationError(f"{operator} takes no Value.")
        return bool(found) is (operator == "Exists")
    if "Value" not in one:
        raise ValidationError(f"The filter {one['Name']} needs a Value for {operator}.")
    wanted = one["Value"]
    if operator == "NotEquals":
        return not any(_equal(item, wanted) for item in found)
    return any(_COMPARE[operator](item, wanted) for item in found)


def values(job: Job, name: str) -> Iterator[Any]:
    """What a property's name stands for: ``Tags.key``, ``Metrics.name``, ``HyperParameters.key``, or a path of members."""
    kind, _, rest = name.partition(".")
    if kind == "Tags" and rest:
        yield from (tag["Value"] for tag in job.get("Tags", ()) if tag["Key"] == rest)
    elif kind == "Metrics" and rest:
        metrics = job.get("FinalMetricDataList", ())
        yield from (one["Value"] for one in metrics if one["MetricName"] == rest)
    elif kind in ("HyperParameters", "Environment") and rest:
        # Keys of maps may hold dots themselves.
        if rest in job.get(kind, {}):
            yield job[kind][rest]
    else:
        yield from _path(job, name.split("."))


def _path(value: Any, parts: list[str]) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _path(item, parts)
    elif not parts:
        yield value
    elif isinstance(value, Mapping) and parts[0] in value:
        yield from _path(value[parts[0]], parts[1:])


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _order(found: Any, wanted: str) -> int | None:
    """-1, 0 or 1; None where the two cannot be compared. Numbers, and times, compare as such."""
    left: Any = _number(found)
    right: Any = _number(wanted)
    if left is not None and right is None:
        try:
            right = seconds(wanted)
        except (TypeError, ValueError):
            return None
    if left is None:
        left, right = str(found), wanted
    return int(left > right) - int(left < right)


def _equal(found: Any, wanted: str) -> bool:
    if isinstance(found, bool):
        return str(found).lower() == wanted.lower()
    if isinstance(found, str):
        return found == wanted
    return _order(found, wanted) == 0


def _in(found: Any, wanted: str) -> bool:
    return any(_equal(found, part.strip()) for part in wanted.split(","))


_COMPARE: Mapping[str, Callable[[Any, str], bool]] = {
    "Equals": _equal,
    "In": _in,
    "Contains": lambda found, wanted: wanted.lower() in str(found).lower(),
    "GreaterThan": lambda found, wanted: _order(found, wanted) == 1,
    "GreaterThanOrEqualTo": lambda found, wanted: _order(found, wanted) in (0, 1),
    "LessThan": lambda found, wanted: _order(found, wanted) == -1,
    "LessThanOrEqualTo": lambda found, wanted: _order(found, wanted) in (0, -1),
}
