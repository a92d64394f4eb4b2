"""A walk over a document along the traits of the service model that reports every fault at once, in the service's form.

botocore's own validator checks neither patterns nor enums.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hotfire.runtime.errors import ValidationError
from hotfire.runtime.masking import MASK, is_secret, masked_text
from hotfire.runtime.service_model import ROOT, Shapes

_PATTERN_LIMIT = 16_384
_ENUM_LIMIT = 12
_SHOWN = 120
_INTEGER_TYPES = {"integer": 31, "long": 63}
_FLOAT_TYPES = ("float", "double")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One violated constraint. ``path`` is in the service's form: ``inputDataConfig.1.member.channelName``."""

    path: str
    value: str
    """As it may be printed: quoted, shortened, masked; ``null`` when the member is missing."""
    constraint: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"Value {self.value} at '{self.path}'"
        return printable(f"{where} failed to satisfy constraint: {self.constraint}")


class RequestInvalid(ValidationError):
    """All faults of a request; the message has the service's form (contract 9.3)."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        count = len(faults)
        noun = "error" if count == 1 else "errors"
        hints = dict.fromkeys(printable(fault.hint) for fault in faults if fault.hint)
        super().__init__(
            f"{count} validation {noun} detected: " + "; ".join(map(str, faults)),
            do="\n".join(hints) or "Correct the request; nothing was started.",
        )
        self.faults = tuple(faults)

    def lines(self) -> Iterator[str]:
        """For people: each fault on a line of its own, and what to do about it indented below."""
        for fault in self.faults:
            yield str(fault)
            if fault.hint:
                yield f"  {printable(fault.hint)}"


Extensions = Mapping[tuple[str, str], str]
"""Pattern of what is taken beyond the model, by structure and member."""


class Walk:
    """One way to check documents."""

    def __init__(
        self, shapes: Shapes, *, extensions: Extensions | None = None, private: Collection[str] = ()
    ) -> None:
        """``private`` names members whose values are never printed."""
        self._shapes = shapes
        self._extensions = extensions or {}
        self._private = private

    def check(self, value: Any, shape_name: str = ROOT) -> list[Fault]:
        """Every fault of ``value``, in the order of the document."""
        return list(self._walk(shape_name, value, "", False))

    def _walk(self, name: str, value: Any, path: str, secret: bool) -> Iterator[Fault]:
        shape = self._shapes[name]
        kind = shape["type"]
        if fault := _type_fault(kind, value, path, secret):
            yield fault
            return
        if kind == "structure":
            yield from self._structure(name, shape, value, path, secret)
        elif kind == "list":
            yield from _size_faults(shape, len(value), value, path, secret)
            for index, item in enumerate(value, 1):
                yield from self._walk(shape["member"], item, f"{path}.{index}.member", secret)
        elif kind == "map":
            yield from _size_faults(shape, len(value), value, path, secret)
            for key, item in value.items():
                yield from self._entry(shape, key, item, path, secret)
        else:
            yield from _scalar_faults(shape, value, path, secret)

    def _structure(
        self, name: str, shape: Mapping[str, Any], value: Any, path: str, secret: bool
    ) -> Iterator[Fault]:
        members: Mapping[str, str] = shape["members"]
        for required in shape.get("required", ()):
            if required not in value:
                yield missing(_join(path, required))
        for member, item in value.items():
            if member not in members:
                yield _unknown(path, member, members)
                continue
            extra = self._extensions.get((name, member))
            if extra and isinstance(item, str) and re.fullmatch(extra, item):
                continue
            yield from self._walk(
                members[member], item, _join(path, member), secret or member in self._private
            )

    def _entry(
        self, shape: Mapping[str, Any], key: Any, item: Any, path: str, secret: bool
    ) -> Iterator[Fault]:
        # A key of another type than string is told as it is written: put it in quotes.
        for fault in self._walk(shape["key"], key, path, False):
            yield _within("Map keys", fault, path)
        where = f"{path}.{key}"
        if any(self._walk(shape["value"], item, where, True)):
            hidden = secret or is_secret(str(key))
            for fault in self._walk(shape["value"], item, where, hidden):
                yield _within("Map value", fault, where)


def _within(what: str, fault: Fault, path: str) -> Fault:
    constraint = f"{what} must satisfy constraint: [{fault.constraint}]"
    return Fault(path=path, value=fault.value, constraint=constraint, hint=fault.hint)


def missing(path: str, hint: str = "") -> Fault:
    """A member that must be there and is not."""
    return Fault(path=path, value="null", constraint="Member must not be null", hint=hint)


def camel(member: str) -> str:
    """``S3OutputPath`` -> ``s3OutputPath``, as the service names members in messages."""
    return member[:1].lower() + member[1:]


def near(word: str, candidates: Collection[str], count: int = 3) -> list[str]:
    """The candidates that are spelt most like ``word``."""
    import difflib

    folded = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(word.lower(), folded, n=count, cutoff=0.6)
    return [folded[name] for name in close]


def printable(text: str) -> str:
    """``text`` in one line: control characters and half characters as escapes."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def shown(value: Any, secret: bool = False) -> str:
    """``value`` as an error message may print it."""
    if value is None:
        return "null"
    if secret:
        return f"'{MASK}'"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list | tuple):
        return f"of {len(value)} entries"
    text = masked_text(str(value))
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}... ({len(text)} characters)"
    return f"'{text}'"


def _join(path: str, member: str) -> str:
    return f"{path}.{camel(member)}" if path else camel(member)


def _unknown(path: str, member: Any, members: Mapping[str, str]) -> Fault:
    text = member if isinstance(member, str) else repr(member)
    close = near(text, members)
    known = ", ".join(sorted(members)) if len(members) <= 2 * _ENUM_LIMIT else ""
    if close:
        hint = f"{text}: did you mean {' or '.join(close)}?"
    else:
        hint = f"{text}: known here are {known}." if known else f"{text}: remove it."
    # The value may be a secret that went astray.
    return Fault(
        path=_join(path, text),
        value="of an unknown member",
        constraint="Member must be defined by CreateTrainingJob",
        hint=hint,
    )


_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "structure": ((dict,), "an object"),
    "map": ((dict,), "an object"),
    "list": ((list, tuple), "a list"),
    "string": ((str,), "a string"),
    "integer": ((int,), "an integer"),
    "long": ((int,), "an integer"),
    "float": ((int, float), "a number"),
    "double": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
}


def _type_fault(kind: str, value: Any, path: str, secret: bool) -> Fault | None:
    if value is None:
        return missing(
            path,
            f"{path.rpartition('.')[2] or 'The request'}: remove a member rather than giving null.",
        )
    types, noun = _TYPES[kind]
    fits = isinstance(value, types) and isinstance(value, bool) is (kind == "boolean")
    # JSON has numbers that no float holds.
    if fits and (kind not in _FLOAT_TYPES or abs(value) <= sys.float_info.max):
        return None
    scalar = not isinstance(value, dict | list)
    text = (
        shown(value, secret)
        if scalar
        else f"of type {'object' if isinstance(value, dict) else 'list'}"
    )
    # Numbers are told bare, so that 5 and "5" look as different as they are.
    if isinstance(value, int | float) and not secret:
        text = text.strip("'")
    hint = ""
    if kind == "string" and scalar:
        hint = f"{path}: put the value in quotes."
    elif kind in ("integer", "long", "boolean") and isinstance(value, str):
        hint = f"{path}: write it without quotes."
    return Fault(path=path or "request", value=text, constraint=f"Member must be {noun}", hint=hint)


def _size_faults(
    shape: Mapping[str, Any], size: int, value: Any, path: str, secret: bool, noun: str = "length"
) -> Iterator[Fault]:
    broken = []
    if "min" in shape and size < shape["min"]:
        broken.append(f"greater than or equal to {shape['min']}")
    if "max" in shape and size > shape["max"]:
        broken.append(f"less than or equal to {shape['max']}")
    for words in broken:
        constraint = f"Member must have {noun} {words}"
        yield Fault(path=path, value=shown(value, secret), constraint=constraint)


def _scalar_faults(
    shape: Mapping[str, Any], value: Any, path: str, secret: bool
) -> Iterator[Fault]:
    kind = shape["type"]
    if bits := _INTEGER_TYPES.get(kind):
        limits = {"min": -(2**bits), "max": 2**bits - 1} | {
            key: shape[key] for key in ("min", "max") if key in shape
        }
        yield from _size_faults(limits, value, value, path, secret, "value")
    elif kind == "string":
        yield from _size_faults(shape, len(value), value, path, secret)
        if not _encodable(value):
            yield Fault(
                path=path, value="with half a character", constraint="Member must be Unicode text"
            )
        pattern = shape.get("pattern")
        if pattern and len(value) <= _PATTERN_LIMIT and not matches(pattern, value):
            yield Fault(
                path=path,
                value=shown(value, secret),
                constraint=f"Member must satisfy regular expression pattern: {pattern}",
            )
        if "enum" in shape and value not in shape["enum"]:
            yield _enum_fault(shape["enum"], value, path, secret)


def _encodable(value: str) -> bool:
    """False for the lone surrogates that JSON's escapes can smuggle in: no file or process can take them."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _enum_fault(allowed: Sequence[str], value: str, path: str, secret: bool) -> Fault:
    close = near(value, allowed)
    listed = list(allowed)
    if len(listed) > _ENUM_LIMIT:
        rest = len(listed) - len(close)
        listed = [*close, f"{rest} {'more' if close else 'values'}"]
    return Fault(
        path=path,
        value=shown(value, secret),
        constraint=f"Member must satisfy enum value set: [{', '.join(listed)}]",
        hint=f"{value}: did you mean {' or '.join(close)}?" if close and not secret else "",
    )


def matches(pattern: str, value: str) -> bool:
    """Whether the whole ``value`` matches a pattern of the service model (Java's dialect, ASCII classes)."""
    if pattern == ".*":
        return "\n" not in value
    return _compiled(pattern, value.isascii()).fullmatch(value) is not None


# What Java's properties hold of ASCII; all of them stand inside brackets in the model.
_ASCII_PROPERTIES = {
    r"\p{Alnum}": "a-zA-Z0-9",
    r"\p{L}": "a-zA-Z",
    r"\p{N}": "0-9",
    r"\p{Z}": " ",
}


@cache
def _compiled(pattern: str, ascii_only: bool) -> re.Pattern[str]:
    """``re`` where it can say it; ``regex``, which takes 40 ms to import, for letters beyond ASCII."""
    translated = pattern.replace(r"\p{Alnum}", "a-zA-Z0-9")
    if ascii_only:
        for name, characters in _ASCII_PROPERTIES.items():
            translated = translated.replace(name, characters)
    if r"\p{" not in translated:
        return re.compile(translated, re.ASCII)
    from importlib import import_module

    compile_: Callable[[str], re.Pattern[str]] = import_module("regex").compile
    return compile_(translated)
