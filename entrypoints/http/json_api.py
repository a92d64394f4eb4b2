"""AWS JSON 1.0 and 1.1: the target names the operation, the body is its request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hotfire.entrypoints.http.messages import Request, Response, request_id
from hotfire.runtime.errors import HotfireError, UnsupportedError, ValidationError
from hotfire.runtime.traits import RequestInvalid

TYPE = "application/x-amz-json-1.1"


class Malformed(HotfireError):
    api_code = "SerializationException"


def document(request: Request) -> dict[str, Any]:
    """The body.

    Raises:
        Malformed: it is not a JSON object.
        TooLarge: it is too large for one.
    """
    raw = request.body.all()
    try:
        found = json.loads(raw or b"{}", parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Malformed("The body is not JSON.") from error
    if not isinstance(found, dict):
        raise Malformed("The body is not a JSON object.")
    return found


def _refuse(word: str) -> Any:
    raise ValueError(word)


def answer(value: Mapping[str, Any] | None) -> Response:
    """Of an operation; None for one that answers nothing."""
    body = b"" if value is None else json.dumps(value, ensure_ascii=False).encode()
    return Response(headers={"Content-Type": TYPE, "x-amzn-RequestId": request_id()}, body=body)


def failure(code: str, message: str, status: int = 400) -> Response:
    """An error in the form of the protocol."""
    body = json.dumps({"__type": code, "message": message}).encode()
    headers = {
        "Content-Type": TYPE,
        "x-amzn-RequestId": request_id(),
        "x-amzn-ErrorType": code,
    }
    return Response(status=status, headers=headers, body=body)


def refused(error: HotfireError) -> Response:
    """One of our errors: what happened, and what to do where that means something to a caller of the API."""
    text = error.what
    helpful = isinstance(error, ValidationError) and not isinstance(error, RequestInvalid)
    if error.do and (helpful or isinstance(error, UnsupportedError)):
        text = f"{text} {error.do}"
    status = 500 if error.api_code == "InternalServerError" else 400
    return failure(error.api_code, " ".join(text.split()), status)
