"""Requests and answers along botocore's service model: what a request may hold, and what an answer looks like.

The whole model is read (0.1 s), which only a server can afford; the command line has its own extract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hotfire.runtime import service_model, traits
from hotfire.runtime.service_model import Shapes


@dataclass(frozen=True)
class Model:
    """The operations of one service, and the shapes that the operations of ours reach."""

    operations: Mapping[str, tuple[str, str]]
    """Name to the names of the input and of the output shape; an empty name where there is none."""
    shapes: Shapes

    @classmethod
    def load(cls, carried_out: tuple[str, ...], service: str = "sagemaker") -> Model:
        """Read the model; shapes are kept for the operations that are carried out, names of all the others."""
        from botocore.loaders import Loader

        raw = Loader().load_service_model(service, "service-2")
        operations = {
            name: (
                str(one.get("input", {}).get("shape", "")),
                str(one.get("output", {}).get("shape", "")),
            )
            for name, one in raw["operations"].items()
        }
        shapes: dict[str, Mapping[str, Any]] = {}
        for name in carried_out:
            for root in filter(None, operations[name]):
                shapes.update(service_model.extract(raw, root))
        return cls(operations, shapes)

    def check(self, operation: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """The request as the operation takes it: times as numbers of seconds since the epoch.

        Raises:
            RequestInvalid: it is not one; the message names every fault in the service's form.
        """
        shape = self.operations[operation][0]
        times = {}
        faults = []
        for member, kind in self.shapes[shape]["members"].items():
            if member in document and self.shapes[kind]["type"] == "timestamp":
                try:
                    times[member] = seconds(document[member])
                except (TypeError, ValueError, OverflowError):
                    path = traits.camel(member)
                    value = traits.shown(document[member])
                    faults.append(
                        traits.Fault(
                            path=path, value=value, constraint="Member must be a timestamp"
                        )
                    )
        rest = {
            name: value for name, value in document.items() if name not in times | _named(faults)
        }
        faults += traits.Walk(self.shapes).check(rest, shape)
        if faults:
            raise traits.RequestInvalid(faults)
        return {**rest, **times}

    def answer(self, operation: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """The answer as it travels: members of the model only, times as seconds since the epoch."""
        shape = self.operations[operation][1]
        found: dict[str, Any] = self._travelling(shape, value) if shape else {}
        return found

    def _travelling(self, name: str, value: Any) -> Any:
        shape = self.shapes[name]
        kind = shape["type"]
        if kind == "structure":
            members = shape["members"]
            return {
                key: self._travelling(members[key], item)
                for key, item in value.items()
                if key in members
            }
        if kind == "list":
            return [self._travelling(shape["member"], item) for item in value]
        return seconds(value) if kind == "timestamp" else value


def _named(faults: list[traits.Fault]) -> dict[str, None]:
    return {fault.path[:1].upper() + fault.path[1:]: None for fault in faults}


def seconds(value: Any) -> float:
    """A moment as seconds since the epoch: a number stays one, a text is ISO 8601.

    Raises:
        ValueError: neither, or not finite.
        TypeError: another type.
    """
    if isinstance(value, str):
        return datetime.fromisoformat(value).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    # Beyond what a date can be; also sorts out infinities and NaN.
    if not -62_135_596_800 <= value <= 253_402_300_799:
        raise ValueError(value)
    return float(value)
