"""Pages over rows that change between calls: a token names the last row that was told, not a position."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hotfire.runtime.errors import ValidationError

Row = TypeVar("Row")

Key = tuple[Any, ...]
"""What rows are sorted by: a number or a text, then the name, so that no two are equal."""


def page(
    rows: Sequence[Row],
    key: Callable[[Row], Key],
    *,
    descending: bool,
    limit: int,
    token: str | None,
    question: Mapping[str, Any],
) -> tuple[list[Row], str | None]:
    """One page and the token of the next, which is None when nothing is left.

    Args:
        question: everything that decides which rows there are and in which order; a token answers only the same one.

    Raises:
        ValidationError: the token is not one of ours, or belongs to another question.
    """
    mark = hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()
    ordered = sorted(rows, key=key, reverse=descending)
    if token:
        after = _read(token, mark[:16])
        try:
            ordered = [
                row for row in ordered if (key(row) < after if descending else key(row) > after)
            ]
        except TypeError as error:
            raise _bad_token() from error
    told = ordered[:limit]
    if len(ordered) <= limit:
        return told, None
    text = json.dumps({"after": key(told[-1]), "of": mark[:16]})
    return told, base64.urlsafe_b64encode(text.encode()).decode()


def _read(token: str, mark: str) -> Key:
    try:
        found = json.loads(base64.urlsafe_b64decode(token.encode()))
        if found["of"] == mark:
            return tuple(found["after"])
    except (ValueError, TypeError, KeyError):
        pass
    raise _bad_token()


def _bad_token() -> ValidationError:
    return ValidationError(
        "Invalid NextToken.", do="Give the token of the last answer, with the same filters."
    )
