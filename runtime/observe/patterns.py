"""The regular expressions of MetricDefinitions: which are accepted, and how lines are searched with them.

Two engines. RE2, the default, takes time linear in the text, so no pattern can stall a job. ``python`` is for
patterns that RE2 refuses (look-around, back-references); it runs under a time limit per line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from hotfire.runtime.errors import ValidationError
from hotfire.runtime.spec import MetricDefinition

LINE_SECONDS = 0.1
"""About how long one pattern may search one line under the engine ``python``."""
SLOW_LINES = 3
"""Lines that may exceed :data:`LINE_SECONDS` before a pattern is given up."""

_MEMORY = 64 << 20
# What means the ends of the text and not of a line, so that only a line may be searched with it: \A, \z, \Q (which
# hides what follows), \C (any byte, the newline as well), and flags that are switched off.
_LINE_ONLY = re.compile(r"\\[AzQC]|\(\?[a-zA-Z]*-")


class Engine(StrEnum):
    """The word of ``--regex``."""

    RE2 = "re2"
    PYTHON = "python"


class Found(NamedTuple):
    """One match: which definition, and its first capture group, None where that took no part in the match."""

    definition: int
    text: str | None
    before: str = ""
    """The two characters in front of the group: they tell what the pattern may have cut off."""


class Matcher(Protocol):
    """Searches whole lines with all definitions."""

    gave_up: list[bool]
    """Per definition: it was switched off because it took too long."""

    def search(self, text: bytes) -> Iterator[Found]:
        """Every match in ``text`` (lines of UTF-8, each with its newline): by line, definition, position."""


def matcher(definitions: Sequence[MetricDefinition], engine: Engine = Engine.RE2) -> Matcher:
    """The matcher for definitions that :func:`check` has passed; for none, one that imports no engine."""
    return _Re2(definitions) if definitions and engine is Engine.RE2 else _Python(definitions)


def check(definitions: Sequence[MetricDefinition], engine: Engine = Engine.RE2) -> tuple[str, ...]:
    """Warnings about definitions that are accepted and will not do what was meant.

    Raises:
        ValidationError: the engine refuses a pattern; the message names every such definition and the construct.
    """
    refused, warnings = [], []
    for definition in definitions:
        what = f"metric {definition.name!r}: {definition.regex!r}"
        try:
            groups = _compile(definition.regex, engine).groups
        except _Refused as error:
            refused.append(f"{what}: {error}")
        else:
            if not groups:
                warnings.append(
                    f"{what} has no capture group, and the value is what the first one captures"
                )
    if refused:
        hint = "Rewrite it for RE2 (github.com/google/re2/wiki/Syntax)"
        python = _all_compile(definitions, Engine.PYTHON) and engine is Engine.RE2
        raise ValidationError(
            "; ".join(refused),
            do=f"{hint}, or use --regex python." if python else "Correct the pattern.",
        )
    return tuple(warnings)


class _Refused(Exception):
    """Why an engine does not take a pattern."""


def _all_compile(definitions: Sequence[MetricDefinition], engine: Engine) -> bool:
    try:
        for definition in definitions:
            _compile(definition.regex, engine)
    except _Refused:
        return False
    return True


_CONSTRUCTS = {
    "(?=": "look-ahead (?=...)",
    "(?!": "negative look-ahead (?!...)",
    "(?<=": "look-behind (?<=...)",
    "(?<!": "negative look-behind (?<!...)",
    "(?>": "atomic group (?>...)",
    "(?(": "conditional group (?(...)",
    "(?#": "comment (?#...)",
    "(?P": "named back-reference (?P=...)",
    r"\Z": r"\Z (write \z)",
    r"\h": r"\h (write [ \t])",
    r"\R": r"\R (a line holds no newline)",
    r"\G": r"\G",
    r"\K": r"\K",
    r"\X": r"\X",
}


def _construct(message: str) -> str:
    """RE2's error text with the name of the construct that it does not know."""
    kind, _, detail = message.partition(": ")
    if kind == "invalid escape sequence" and re.fullmatch(r"\\([1-9]|k)", detail):
        return f"back-reference {detail}"
    if kind == "bad repetition operator":
        possessive = detail.endswith("+") and len(detail) == 2
        return f"possessive quantifier {detail}" if possessive else message
    return _CONSTRUCTS.get(detail, message)


def _compile(regex: str, engine: Engine, **options: Any) -> Any:
    """A pattern over bytes (RE2) or text (python).

    Raises:
        _Refused: the engine does not take it.
    """
    if engine is Engine.PYTHON:
        return _compile_python(regex)
    import re2

    try:
        return re2.compile(regex.encode(), options=_re2_options(**options))
    except re2.error as error:
        text = error.args[0] if error.args else b""
        message = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        raise _Refused(f"RE2 refuses it: {_construct(message)}") from None


def _re2_options(**changes: Any) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    for name, value in changes.items():
        setattr(options, name, value)
    return options


def _compile_python(regex: str) -> Any:
    import warnings

    import regex as engine  # type: ignore[import-untyped, unused-ignore]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # "possible nested set": not in version 0
            return engine.compile(regex, engine.VERSION0)
    except engine.error as error:
        raise _Refused(f"not a regular expression of Python: {error}") from None


def _found(index: int, match: Any, line: Any) -> Found:
    """Of a match in a pattern that has a group."""
    start, end = match.span(1)
    if start < 0:
        return Found(index, None)
    text, before = line[start:end], line[max(0, start - 2) : start]
    if isinstance(text, bytes):
        return Found(index, text.decode("utf-8", "replace"), before.decode("latin-1"))
    return Found(index, text, before)


class _Re2:
    """A scan of the whole text for lines in which anything matches, and only those line by line.

    The scan is one automaton for all definitions; ``never_nl`` keeps a match within its line.
    """

    def __init__(self, definitions: Sequence[MetricDefinition]) -> None:
        import re2

        patterns = [definition.regex for definition in definitions]
        self.gave_up = [False] * len(patterns)
        self._each = [_compile(pattern, Engine.RE2) for pattern in patterns]
        self._groups = [pattern.groups for pattern in self._each]
        self._which = re2.Set.SearchSet(_re2_options())
        for pattern in patterns:
            self._which.Add(pattern.encode())
        self._which.Compile()
        self._any = _scanner(patterns)

    def search(self, text: bytes) -> Iterator[Found]:
        for line in self._lines(text):
            # The set answers nothing when its automaton outgrows its memory: then all of them are tried.
            for index in sorted(self._which.Match(line) or ()) or range(len(self._each)):
                for match in self._each[index].finditer(line):
                    yield _found(index, match, line) if self._groups[index] else Found(index, None)

    def _lines(self, text: bytes) -> Iterator[bytes]:
        """Lines without their newline: those with a match, or all where nothing can be said of the whole text."""
        if self._any is None:
            yield from text.split(b"\n")[:-1]
            return
        at = 0
        while at < len(text) and (match := self._any.search(text, at)):
            start = text.rfind(b"\n", at, match.start()) + 1 or at
            end = text.find(b"\n", match.end())
            if end < 0:
                return  # an empty match behind the last newline
            yield text[start:end]
            at = end + 1


def _scanner(patterns: Sequence[str]) -> Any:
    """One pattern that matches wherever any of them does; None when they cannot be put together."""
    if not patterns or any(_LINE_ONLY.search(pattern) for pattern in patterns):
        return None
    together = "(?m)" + "|".join(f"(?:{pattern})" for pattern in patterns)
    try:
        return _compile(together, Engine.RE2, never_capture=True, never_nl=True)
    except _Refused:  # the same group name twice, or too large together
        return None


class _Python:
    """Python's own syntax, by the package ``regex``, which can stop a search that takes too long."""

    def __init__(self, definitions: Sequence[MetricDefinition]) -> None:
        self._each = [_compile_python(definition.regex) for definition in definitions]
        self._slow = [0] * len(definitions)
        self.gave_up = [False] * len(definitions)

    def search(self, text: bytes) -> Iterator[Found]:
        for line in text.decode("utf-8", "replace").split("\n")[:-1]:
            for index, pattern in enumerate(self._each):
                if not self.gave_up[index]:
                    yield from self._search_line(index, pattern, line)

    def _search_line(self, index: int, pattern: Any, line: str) -> Iterator[Found]:
        try:
            matches = list(pattern.finditer(line, timeout=LINE_SECONDS))
        except TimeoutError:
            self._slow[index] += 1
            self.gave_up[index] = self._slow[index] >= SLOW_LINES
            return
        for match in matches:
            yield _found(index, match, line) if pattern.groups else Found(index, None)
