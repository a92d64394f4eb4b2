"""One file to one key of S3: a large one in parts, several at once, and after an interruption only those that are missing."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from hotfire.runtime.daemon_pool import DaemonPool
from hotfire.runtime.s3 import S3
from hotfire.runtime.s3_patience import Patience
from hotfire.runtime.storage import S3Location
from hotfire.runtime.synced import Abandoned, Changed, Signature
from hotfire.runtime.uploads import Begun, Uploads

PART = 8 << 20
"""Bytes of a part, unless there were more than :data:`MOST` of them; what is not larger goes in one request."""
MOST = 10_000
THREADS = 8
"""Parts in flight for one file."""

_LEAVE = 1.0
"""Seconds for the threads to end after an error; one whose request is not answered is left behind."""

Moved = Callable[[int, bool], bool]
"""Called, from several threads, with bytes that went out and False (negative: they must go out again), and with the bytes
of a part that S3 has stored for good and True. It answers whether to go on."""
Answer = dict[str, Any]
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


def send(transfer: Transfer, uploads: Uploads | None) -> None:
    """Store a file under its key, whole or not at all, in constant memory.

    A large one goes in parts, without those that S3 has from an upload in ``uploads`` of the same, unchanged file; such
    an upload of a file that has changed is taken back. One that fails or is given up stays, with its record, for the next
    call; without ``uploads`` it leaves nothing.

    Raises:
        BotoCoreError, ClientError: it did not work.
        Abandoned: ``moved`` answered no.
        Changed: the file changed meanwhile, and nothing was stored.
    """
    if transfer.before.size > PART:
        _send_in_parts(transfer, uploads)
    else:
        _send_whole(transfer)


def _send_whole(transfer: Transfer) -> None:
    data = transfer.source.read(transfer.before.size)
    if transfer.changed():
        raise Changed
    to, put = transfer.to, transfer.s3.client.put_object
    _ask(
        transfer,
        threading.Event(),
        lambda: put(Bucket=to.bucket, Key=to.key, Body=data, **transfer.extra),
    )
    transfer.moved(len(data), False)


def _send_in_parts(transfer: Transfer, uploads: Uploads | None) -> None:
    from botocore.exceptions import ClientError

    again = True
    while True:
        begun, parts, kept = _begin(transfer, uploads)
        transfer.found(sum(_length(transfer, begun, number) for number in parts))
        try:
            _send_parts(transfer, begun, parts)
            if transfer.changed():
                raise Changed
            _complete(transfer, begun, parts)
        except BaseException as error:
            gone = isinstance(error, ClientError) and _code(error) == "NoSuchUpload"
            over = not kept or gone or isinstance(error, Changed)
            if over and _abort(transfer.s3, begun):
                _forget(uploads, transfer.to)
            if not gone or not again:
                raise
            # Somebody took it back, or it was completed and the answer was lost: once more, from the start.
            again = False
            transfer.moved(-transfer.before.size, False)
        else:
            _forget(uploads, transfer.to)
            return


def take_back(s3: S3, uploads: Uploads) -> list[Begun]:
    """Take back all uploads of an owner who will not go on with them.

    Returns:
        Those that S3 still has, with their records: after a first one that does not go no other is tried.
    """
    left: list[Begun] = []
    for begun in uploads.all():
        if left or not _abort(s3, begun):
            left.append(begun)
        else:
            uploads.forget(begun.to)
    return left


def take_all_back(directory: Path) -> list[Begun]:
    """:func:`take_back` for all owners below a job's ``uploads``."""
    s3 = S3()
    return [
        begun for path in sorted(directory.glob("*/")) for begun in take_back(s3, Uploads(path))
    ]


def _abort(s3: S3, begun: Begun) -> bool:
    """Whether S3 has none of the upload's parts any more."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        s3.client.abort_multipart_upload(**_where(begun))
    except ClientError as error:
        return _code(error) in ("NoSuchUpload", "NoSuchBucket")
    except (BotoCoreError, ValueError):
        return False
    return True


def _begin(transfer: Transfer, uploads: Uploads | None) -> tuple[Begun, dict[int, Answer], bool]:
    """The upload to go on with, which of its parts S3 has, and whether it is on record."""
    part = _part_bytes(transfer.before.size)
    # As boto3's own transfers do: the parts must carry what the upload was begun with, and no other checksum.
    wanted = transfer.s3.client.meta.config.request_checksum_calculation != "when_required"
    algorithm = "CRC32" if wanted else ""
    old = uploads.find(transfer.to) if uploads is not None else None
    if old is not None:
        same = (old.source, old.part_bytes, old.algorithm) == (transfer.before, part, algorithm)
        parts = _listed(transfer, old) if same else None
        if parts is not None:
            return old, parts, True
        if _abort(transfer.s3, old):
            _forget(uploads, transfer.to)
    checksum = {"ChecksumAlgorithm": algorithm} if algorithm else {}
    answer = _ask(
        transfer,
        threading.Event(),
        lambda: transfer.s3.client.create_multipart_upload(
            Bucket=transfer.to.bucket, Key=transfer.to.key, **checksum, **transfer.extra
        ),
    )
    begun = Begun(
        bucket=transfer.to.bucket,
        key=transfer.to.key,
        upload_id=answer["UploadId"],
        source=transfer.before,
        part_bytes=part,
        algorithm=algorithm,
    )
    return begun, {}, uploads is not None and uploads.keep(begun)


def _part_bytes(size: int) -> int:
    needed = -(-size // MOST)
    return max(PART, -(-needed >> 20) << 20)


def _length(transfer: Transfer, begun: Begun, number: int) -> int:
    return min(begun.part_bytes, transfer.before.size - (number - 1) * begun.part_bytes)


def _listed(transfer: Transfer, begun: Begun) -> dict[int, Answer] | None:
    """The whole parts that S3 has; None where it does not know the upload any more."""
    from botocore.exceptions import ClientError

    paginator = transfer.s3.client.get_paginator("list_parts")
    try:
        pages = _ask(transfer, threading.Event(), lambda: list(paginator.paginate(**_where(begun))))
    except ClientError as error:
        if _code(error) in ("NoSuchUpload", "NoSuchBucket"):
            return None
        raise
    return {
        one["PartNumber"]: _completed(one["PartNumber"], one)
        for page in pages
        for one in page.get("Parts", ())
        if one["Size"] == _length(transfer, begun, one["PartNumber"])
    }


def _completed(number: int, answer: Mapping[str, Any]) -> Answer:
    """What CompleteMultipartUpload wants to hear of a part: its number, its ETag, and its checksum if it has one."""
    told = {name: value for name, value in answer.items() if name.startswith("Checksum")}
    return {"PartNumber": number, "ETag": answer["ETag"], **told}


def _send_parts(transfer: Transfer, begun: Begun, parts: dict[int, Answer]) -> None:
    """Send what is not in ``parts`` yet, and put it there."""
    count = -(-transfer.before.size // begun.part_bytes)
    missing = [number for number in range(1, count + 1) if number not in parts]
    if not missing:
        return
    # A thread that is left behind may read on: from a number that is its own, and not by now another file's.
    descriptor = os.dup(transfer.source.fileno())
    stop = threading.Event()
    pool = DaemonPool(min(THREADS, len(missing)), "upload")

    def one(number: int) -> None:
        if not stop.is_set():
            parts[number] = _send_part(transfer, begun, number, descriptor, stop)

    try:
        work = [pool.submit(one, number) for number in missing]
        for future in wait(work, return_when=FIRST_EXCEPTION).done:
            future.result()
    finally:
        stop.set()
        if pool.close(_LEAVE):
            os.close(descriptor)


def _send_part(
    transfer: Transfer, begun: Begun, number: int, descriptor: int, stop: threading.Event
) -> Answer:
    size = _length(transfer, begun, number)
    checksum = {"ChecksumAlgorithm": begun.algorithm} if begun.algorithm else {}

    def request() -> Answer:
        body = Body(descriptor, (number - 1) * begun.part_bytes, size, transfer.moved, stop)
        try:
            answer: Answer = transfer.s3.client.upload_part(
                **_where(begun), PartNumber=number, Body=body, **checksum
            )
        except BaseException:
            body.take_back()
            raise
        return answer

    answer = _ask(transfer, stop, request)
    if not transfer.moved(size, True):
        raise Abandoned
    return _completed(number, answer)


def _complete(transfer: Transfer, begun: Begun, parts: Mapping[int, Answer]) -> None:
    listed = {"Parts": [parts[number] for number in sorted(parts)]}
    _ask(
        transfer,
        threading.Event(),
        lambda: transfer.s3.client.complete_multipart_upload(
            **_where(begun), MultipartUpload=listed
        ),
    )


def _where(begun: Begun) -> dict[str, str]:
    return {"Bucket": begun.bucket, "Key": begun.key, "UploadId": begun.upload_id}


def _ask(transfer: Transfer, stop: threading.Event, request: Callable[[], _T]) -> _T:
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


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _forget(uploads: Uploads | None, to: S3Location) -> None:
    if uploads is not None:
        uploads.forget(to)
