"""ParameterRanges: what may be tried. A point is a place within the ranges, its values are what a script is given."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotfire.runtime.errors import ValidationError

Point = Mapping[str, float | str]
"""By hyperparameter: a share in [0, 1] of a number's range on its own scale, or one of the values of a choice."""
AUTO_LOGARITHMIC = 100
"""From this ratio of its ends on, a range with ScalingType Auto is searched on a logarithmic scale."""


@dataclass(frozen=True, kw_only=True)
class Number:
    """A range of whole or of real numbers, both ends included."""

    name: str
    low: float
    high: float
    whole: bool
    scaling: str
    """``Linear``, ``Logarithmic`` or ``ReverseLogarithmic``."""

    def value(self, share: float) -> str:
        """The number at a share of the range, as the service writes it."""
        low, high = self.low, self.high
        if self.whole:
            # Each whole number has its own stretch of the scale, those at the ends included.
            low, high = low - 0.5, high + 0.5
            found = round(_between(low, high, share, self.scaling))
            return str(int(min(max(found, self.low), self.high)))
        return repr(min(max(_between(low, high, share, self.scaling), self.low), self.high))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """CategoricalParameterRange."""

    name: str
    values: tuple[str, ...]

    def value(self, chosen: str) -> str:
        return chosen


Ranges = tuple[Number | Choice, ...]


def values(ranges: Ranges, point: Point) -> dict[str, str]:
    """The hyperparameters at a point."""
    return {one.name: one.value(point[one.name]) for one in ranges}  # type: ignore[arg-type]


def _between(low: float, high: float, share: float, scaling: str) -> float:
    if low == high:
        return low
    if scaling == "Logarithmic":
        return float(low * (high / low) ** share)
    if scaling == "ReverseLogarithmic":
        return float(1 - (1 - low) * ((1 - high) / (1 - low)) ** share)
    return low + share * (high - low)


def parse(raw: Mapping[str, Any], static: Mapping[str, str]) -> Ranges:
    """The ranges of a request whose shape has been checked.

    Args:
        static: StaticHyperParameters; no name may be in both.

    Raises:
        ValidationError: every fault of them, in one message.
    """
    faults: list[str] = []
    found = tuple(_each(raw, faults))
    names = [one.name for one in found]
    if not found:
        faults.append("ParameterRanges names no hyperparameter")
    for name in sorted({name for name in names if names.count(name) > 1}):
        faults.append(f"hyperparameter {name} has more than one range")
    for name in sorted(set(names) & set(static)):
        faults.append(f"hyperparameter {name} is both static and in ParameterRanges")
    if faults:
        raise ValidationError("; ".join(faults) + ".")
    return found


def _each(raw: Mapping[str, Any], faults: list[str]) -> Iterator[Number | Choice]:
    for kind, whole in (("IntegerParameterRanges", True), ("ContinuousParameterRanges", False)):
        for one in raw.get(kind, ()):
            try:
                yield _number(one, whole=whole)
            except ValueError as error:
                faults.append(f"range of {one['Name']}: {error}")
    for one in raw.get("CategoricalParameterRanges", ()):
        yield Choice(name=one["Name"], values=tuple(dict.fromkeys(one["Values"])))


def _number(raw: Mapping[str, Any], *, whole: bool) -> Number:
    low, high = (_parsed(raw[end], whole=whole) for end in ("MinValue", "MaxValue"))
    if low > high:
        raise ValueError(f"MinValue {raw['MinValue']} is above MaxValue {raw['MaxValue']}")
    if not math.isfinite(high - low) or (low > 0 and not math.isfinite(high / low)):
        raise ValueError("it is too wide for floating point numbers")
    scaling = raw.get("ScalingType", "Auto")
    if scaling == "Auto":
        wide = low > 0 and high / low >= AUTO_LOGARITHMIC
        scaling = "Logarithmic" if wide else "Linear"
    if scaling == "Logarithmic" and low <= 0:
        raise ValueError("ScalingType Logarithmic needs values greater than 0")
    if scaling == "ReverseLogarithmic":
        if whole:
            raise ValueError("ScalingType ReverseLogarithmic is for continuous hyperparameters")
        if low < 0 or high >= 1:
            raise ValueError("ScalingType ReverseLogarithmic needs values from 0 to below 1")
    return Number(name=raw["Name"], low=low, high=high, whole=whole, scaling=scaling)


def _parsed(text: str, *, whole: bool) -> float:
    """SDKs write the ends as JSON, or as plain numbers."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or (whole and not found.is_integer()):
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{json.dumps(text)} is not {kind}")
    return found


def combinations(ranges: Sequence[Choice]) -> int:
    """How many points a grid over ``ranges`` has."""
    return math.prod(len(one.values) for one in ranges)
