"""One request and one response, free of the server that carries them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qsl, unquote

from hotfire.runtime.errors import HotfireError

SMALL = 8 << 20
"""Bytes of a body that is read as a whole; the API's own limit for requests is below it."""


class Headers(Protocol):
    """Names in any case."""

    def get(self, name: str, default: str = "", /) -> str: ...

    def items(self) -> Iterable[tuple[str, str]]: ...


class TooLarge(HotfireError):
    api_code = "RequestEntityTooLarge"


class BadBody(HotfireError):
    """The body ends too early, or its framing is broken."""

    api_code = "IncompleteBody"


@dataclass
class Body:
    """The bytes of a request as they come in. ``read`` gives at most that many, nothing at the end."""

    read: Callable[[int], bytes]
    length: int | None
    """As announced; None when it comes in chunks."""

    def all(self, limit: int = SMALL) -> bytes:
        """Everything.

        Raises:
            TooLarge: more than ``limit`` bytes.
        """
        if self.length is not None and self.length > limit:
            raise TooLarge(f"Requests of this kind are limited to {limit} bytes.")
        found = bytearray()
        while data := self.read(1 << 16):
            found += data
            if len(found) > limit:
                raise TooLarge(f"Requests of this kind are limited to {limit} bytes.")
        return bytes(found)


@dataclass(frozen=True, kw_only=True)
class Request:
    method: str
    path: str
    """As it was sent, percent escapes and all."""
    query: str
    headers: Headers
    body: Body

    @property
    def parameters(self) -> dict[str, str]:
        """Of the query; of several with one name the last."""
        return dict(parse_qsl(self.query, keep_blank_values=True, max_num_fields=1000))

    @property
    def decoded_path(self) -> str:
        return unquote(self.path, errors="surrogateescape")


@dataclass(frozen=True, kw_only=True)
class Response:
    """``body``: the bytes, or something to iterate over, with ``length`` then."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Iterable[bytes] = b""
    length: int | None = None
    """Of a body that is not bytes, or of the one that HEAD leaves out."""


def request_id() -> str:
    return str(uuid.uuid4())
