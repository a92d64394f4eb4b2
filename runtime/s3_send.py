"""One file to one key of S3: a large one in parts, several at once, and after an interruption only those that are missing."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping
from typing import Any

from hotfire.runtime.daemon_pool import LEAVE_SECONDS, DaemonPool
from hotfire.runtime.s3_abort import abort, code, where
from hotfire.runtime.s3_transfer import Body, Transfer, ask
from hotfire.runtime.storage import S3Location
from hotfire.runtime.synced import Abandoned, Changed
from hotfire.runtime.uploads import Begun, Uploads

PART = 8 << 20
"""Bytes of a part, unless there were more than :data:`MOST` of them; what is not larger goes in one request."""
MOST = 10_000
THREADS = 8
"""Parts in flight for one file."""

Answer = dict[str, Any]


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
    ask(
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
            gone = isinstance(error, ClientError) and code(error) == "NoSuchUpload"
            over = not kept or gone or isinstance(error, Changed)
            if over and abort(transfer.s3, begun):
                _forget(uploads, transfer.to)
            if not gone or not again:
                raise
            # Somebody took it back, or it was completed and the answer was lost: once more, from the start.
            again = False
            transfer.moved(-transfer.before.size, False)
        else:
            _forget(uploads, transfer.to)
            return


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
        if abort(transfer.s3, old):
            _forget(uploads, transfer.to)
    checksum = {"ChecksumAlgorithm": algorithm} if algorithm else {}
    answer = ask(
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
        pages = ask(transfer, threading.Event(), lambda: list(paginator.paginate(**where(begun))))
    except ClientError as error:
        if code(error) in ("NoSuchUpload", "NoSuchBucket"):
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
        pool.carry_out(functools.partial(one, number) for number in missing)
    finally:
        stop.set()
        if pool.close(LEAVE_SECONDS):
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
                **where(begun), PartNumber=number, Body=body, **checksum
            )
        except BaseException:
            body.take_back()
            raise
        return answer

    answer = ask(transfer, stop, request)
    if not transfer.moved(size, True):
        raise Abandoned
    return _completed(number, answer)


def _complete(transfer: Transfer, begun: Begun, parts: Mapping[int, Answer]) -> None:
    listed = {"Parts": [parts[number] for number in sorted(parts)]}
    ask(
        transfer,
        threading.Event(),
        lambda: transfer.s3.client.complete_multipart_upload(
            **where(begun), MultipartUpload=listed
        ),
    )


def _forget(uploads: Uploads | None, to: S3Location) -> None:
    if uploads is not None:
        uploads.forget(to)
