"""One file on its way to one key of S3: its bytes, who hears of them, and how long S3 is asked."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeVar

from hotfire.runtime.s3 import S3
from hotfire.runtime.s3_patience import Patience
from hotfire.runtime.storage import S3Location
from hotfire.runtime.synced import Abandoned, Changed, Signature

Moved = Callable[[int, bool], bool]
"""Called, from several threads, with bytes that went out and False (negative: they must go out again), and with the bytes
of a part that S3 has stored for good and True. It answers whether to go on."""
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What is to be sent where. ``extra``: members of the request that encrypt the object."""

    s3: S3
    source: BinaryIO
    before: Signature
    """``source`` as it was when it was opened."""
    to: S3Location
    moved: Moved
    extra: Mapping[str, str] = field(default_factory=dict)
    found: Callable[[int], object] = lambda count: None
    """Called first, with the bytes that S3 has already."""
    patient: bool = True
    """A short outage is waited for; else the first failure is the end of this try."""

    def changed(self) -> bool:
        return Signature.of(os.fstat(self.source.fileno())) != self.before


def ask(transfer: Transfer, stop: threading.Event, request: Callable[[], _T]) -> _T:
    """What S3 answers; asked again through a short outage where the transfer is patient.

    Raises:
        BotoCoreError, ClientError: no answer, or an error.
        Abandoned, Changed: that is why; boto3 wraps what a body raises in an error of its own.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    patience = Patience(transfer.s3.client, stop.wait)
    while True:
        try:
            return request()
        except (BotoCoreError, ClientError) as error:
            if stop.is_set():
                raise Abandoned from error
            if transfer.changed():
                raise Changed from error
            if not transfer.patient or not patience.again(error):
                raise


class Body(io.RawIOBase):
    """Bytes ``[start, start + size)`` of an open file, read as they are sent; boto3 may begin again."""

    def __init__(
        self, descriptor: int, start: int, size: int, moved: Moved, stop: threading.Event
    ) -> None:
        self._descriptor, self._start, self._size = descriptor, start, size
        self._moved, self._stop = moved, stop
        self._at = self._told = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        with memoryview(buffer) as view, view[: max(0, self._size - self._at)] as wanted:
            count = os.preadv(self._descriptor, [wanted], self._start + self._at)
            if not count and wanted:
                raise Changed  # shorter than it was: S3 would wait for the rest
        self._at += count
        told, self._told = self._told, self._at
        if self._stop.is_set() or not self._moved(self._at - told, False):
            self._stop.set()
            raise Abandoned
        return count

    def take_back(self) -> None:
        """What was sent has not arrived."""
        self._moved(-self._told, False)
        self._told = 0
