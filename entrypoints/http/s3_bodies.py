"""Bodies of uploads to S3: the ``aws-chunked`` framing, and the checksums that come with them."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hotfire.entrypoints.http.messages import BadBody, Request
from hotfire.runtime.endpoint.objects import Reader, S3Error

_LINE = 4096


class AwsChunked:
    """``size;chunk-signature=...`` frames around the data, headers behind it. ``read`` is a :data:`Reader`."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._buffer = bytearray()
        self._left = 0
        self._done = False
        self.trailers: dict[str, str] = {}

    def read(self, count: int) -> bytes:
        """At most ``count`` bytes of the data.

        Raises:
            BadBody: the framing is broken or ends too early.
        """
        if not self._left and not self._done:
            self._next_chunk()
        if self._done:
            return b""
        if not self._buffer:
            self._fill(min(count, self._left))
        data = bytes(self._buffer[: min(count, self._left)])
        del self._buffer[: len(data)]
        self._left -= len(data)
        if not self._left and self._line():
            raise BadBody("An aws-chunked body is broken.")
        return data

    def _fill(self, count: int) -> None:
        data = self._read(max(count, 1))
        if not data:
            raise BadBody("An aws-chunked body ends too early.")
        self._buffer += data

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _LINE:
                raise BadBody("An aws-chunked body is broken.")
            self._fill(_LINE)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _next_chunk(self) -> None:
        try:
            self._left = int(self._line().partition(b";")[0], 16)
        except ValueError as error:
            raise BadBody("An aws-chunked body is broken.") from error
        if self._left < 0:
            raise BadBody("An aws-chunked body is broken.")
        if not self._left:
            self._done = True
            self._trailers()

    def _trailers(self) -> None:
        try:
            while line := self._line():
                name, _, value = line.decode("latin-1").partition(":")
                self.trailers[name.strip().lower()] = value.strip()
        except BadBody:
            # The last empty line is missing where nothing follows.
            return


@dataclass
class Checksums:
    """What is computed on the way in. CRC-32 always, which is what clients send; others when they are asked for."""

    wanted: Mapping[str, str]
    """Header names that the client sends, or announces as trailers."""
    crc32: int = 0
    _digests: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("sha1", "sha256"):
            if f"x-amz-checksum-{name}" in self.wanted:
                self._digests[name] = hashlib.new(name, usedforsecurity=False)

    def update(self, data: bytes) -> None:
        self.crc32 = zlib.crc32(data, self.crc32)
        for digest in self._digests.values():
            digest.update(data)

    def check(self, given: Mapping[str, str]) -> dict[str, str]:
        """The checksum headers that hold; kinds that the standard library has not are neither checked nor kept.

        Raises:
            S3Error: the data is not what the client sent.
        """
        found = {"crc32": base64.b64encode(self.crc32.to_bytes(4, "big")).decode()}
        for name, digest in self._digests.items():
            found[name] = base64.b64encode(digest.digest()).decode()
        kept = {}
        for name, value in found.items():
            header = f"x-amz-checksum-{name}"
            if header in given:
                if given[header] != value:
                    text = (
                        f"The {name.upper()} you specified did not match the calculated checksum."
                    )
                    raise S3Error("BadDigest", text)
                kept[header] = value
        return kept


class Upload:
    """The data of one PUT: unframed, counted, checked. ``read`` is a :data:`Reader`."""

    def __init__(self, request: Request) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self._chunked = None
        self._source = request.body.read
        framed = headers.get("x-amz-content-sha256", "").startswith("STREAMING-")
        if framed or "aws-chunked" in headers.get("content-encoding", ""):
            self._chunked = AwsChunked(request.body.read)
            self._source = self._chunked.read
        self._headers = headers
        self._sums = Checksums(headers | {headers.get("x-amz-trailer", ""): ""})

    def read(self, count: int) -> bytes:
        data = self._source(count)
        self._sums.update(data)
        return data

    def check(self, md5: str) -> dict[str, str]:
        """The checksum headers to keep and to answer with.

        Raises:
            S3Error: what came is not what was sent.
        """
        wanted = self._headers.get("content-md5")
        if wanted is not None and wanted != base64.b64encode(bytes.fromhex(md5)).decode():
            raise S3Error(
                "BadDigest", "The Content-MD5 you specified did not match what we received."
            )
        trailers = self._chunked.trailers if self._chunked else {}
        return self._sums.check(self._headers | trailers)
