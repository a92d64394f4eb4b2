"""Objects of S3 as streams, read ahead in parallel ranges within a fixed amount of memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from hotfire.runtime.daemon_pool import DaemonPool
from hotfire.runtime.errors import DataError
from hotfire.runtime.s3 import S3, S3Object, errors_as
from hotfire.runtime.s3_patience import Patience

PART = 2 << 20
"""Bytes of one request."""
AHEAD = 4
"""Requests in flight for one object, and objects begun before their turn: 8 parts are the most that memory holds."""

_PREFIX = "Data download failed: "


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The head of an object: its first part, and how large it is."""

    bucket: str
    key: str
    etag: str
    size: int
    first: bytes

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


class Blocks:
    """Ranges of objects, each by a request of its own. ``stop`` makes retries give up."""

    def __init__(self, s3: S3, stop: threading.Event) -> None:
        self._s3 = s3
        self._stop = stop

    def get(self, one: S3Object, start: int, count: int) -> bytes:
        """Bytes [start, start + count) of an object that is still what was listed.

        Raises:
            DataError: it is not, or it cannot be read.
        """
        return self.fetch(one.bucket, one.key, one.etag, start, count)[0]

    def fetch(
        self, bucket: str, key: str, etag: str, start: int, count: int
    ) -> tuple[bytes, dict[str, object]]:
        """Likewise, with S3's whole answer; any version where ``etag`` is empty. Fewer bytes where the object ends."""
        from botocore.exceptions import ClientError

        extra = {"IfMatch": f'"{etag}"'} if etag else {}
        uri, span = f"s3://{bucket}/{key}", f"bytes={start}-{start + count - 1}"
        patience = Patience(self._s3.client, self._stop.wait)
        while True:
            try:
                with errors_as(DataError, uri, "download", prefix=_PREFIX):
                    answer = self._s3.client.get_object(Bucket=bucket, Key=key, Range=span, **extra)
                    with answer["Body"] as body:
                        return body.read(), answer
            except DataError as error:
                cause = error.__cause__
                if isinstance(cause, ClientError) and _empty(cause):
                    return b"", {}
                if not patience.again(cause):
                    raise


class Reader:
    """Begins objects ahead of their turn and streams them."""

    def __init__(self, s3: S3, stop: threading.Event) -> None:
        self._blocks = Blocks(s3, stop)
        self._pool = DaemonPool(2 * AHEAD, "s3")

    def begin(self, bucket: str, key: str, listed: S3Object | None = None) -> Future[Opened]:
        """Ask for an object; ``listed`` is what it must still be."""
        return self._pool.submit(self._open, bucket, key, listed)

    def body(self, opened: Opened) -> Iterator[bytes]:
        """All of it, in order.

        Raises:
            DataError: it changed meanwhile, or cannot be read.
        """
        yield opened.first
        starts = iter(range(len(opened.first), opened.size, PART))
        pending: deque[Future[bytes]] = deque()
        try:
            while True:
                while len(pending) < AHEAD and (start := next(starts, None)) is not None:
                    pending.append(self._pool.submit(self._range, opened, start))
                if not pending:
                    return
                yield pending.popleft().result()
        finally:
            for one in pending:
                one.cancel()

    def close(self) -> None:
        """Do not wait for requests whose answers nobody wants; whoever waits for one gets CancelledError."""
        self._pool.close()

    def _open(self, bucket: str, key: str, listed: S3Object | None) -> Opened:
        if listed is not None and listed.size == 0:
            return Opened(bucket=bucket, key=key, etag=listed.etag, size=0, first=b"")
        etag = "" if listed is None else listed.etag
        data, answer = self._blocks.fetch(bucket, key, etag, 0, PART)
        size = int(str(answer.get("ContentRange", "/0")).rpartition("/")[2])
        etag = str(answer.get("ETag", "")).strip('"')
        return Opened(bucket=bucket, key=key, etag=etag, size=size or len(data), first=data)

    def _range(self, opened: Opened, start: int) -> bytes:
        data, _ = self._blocks.fetch(opened.bucket, opened.key, opened.etag, start, PART)
        return data


def _empty(error: object) -> bool:
    """A range of an object without bytes cannot be satisfied."""
    code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
    return code in ("InvalidRange", "416")
