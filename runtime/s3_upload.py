"""Files to S3 as one activity: several at once, large ones in parts, with one count of bytes for all of them."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotfire.runtime import s3_send
from hotfire.runtime.daemon_pool import LEAVE_SECONDS, DaemonPool
from hotfire.runtime.errors import DataError
from hotfire.runtime.events import Note, Observer, Progress
from hotfire.runtime.s3 import S3, errors_as
from hotfire.runtime.s3_transfer import Transfer
from hotfire.runtime.storage import S3Location, human
from hotfire.runtime.synced import Changed, Signature

if TYPE_CHECKING:
    from hotfire.runtime.uploads import Uploads

_AT_ONCE = 8


def upload(
    s3: S3,
    files: Sequence[tuple[Path, S3Location]],
    observer: Observer,
    activity: str,
    *,
    kms_key_id: str = "",
    uploads: Uploads | None = None,
    sent: Callable[[Path], None] = lambda path: None,
) -> None:
    """Upload ``files``; ``sent`` is told of each that is there, one at a time and perhaps from another thread.

    Large files go on where an upload in ``uploads`` of the same file was cut short. Without it, what fails leaves
    nothing in the bucket.

    Raises:
        DataError: an upload failed; the message names the file, which stays.
    """
    total = sum(path.stat().st_size for path, _ in files)
    errand = _Errand(s3, observer, activity, total, kms_key_id, uploads)
    pool = DaemonPool(min(_AT_ONCE, max(1, len(files))), "upload-file")
    lock = threading.Lock()

    def one(path: Path, to: S3Location) -> None:
        if not errand.over:
            errand.put(path, to)
            with lock:
                sent(path)

    try:
        pool.carry_out(functools.partial(one, path, to) for path, to in files)
    finally:
        errand.over = True
        pool.close(LEAVE_SECONDS)
    observer(Progress(activity=activity, done=total, total=total))


class _Errand:
    def __init__(
        self,
        s3: S3,
        observer: Observer,
        activity: str,
        total: int,
        kms_key_id: str,
        uploads: Uploads | None,
    ) -> None:
        self._s3, self._observer, self._uploads = s3, observer, uploads
        self._activity, self._total = activity, total
        self._extra = (
            {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key_id} if kms_key_id else {}
        )
        self._lock = threading.Lock()
        self._done = self._told = 0
        self.over = False

    def put(self, path: Path, to: S3Location) -> None:
        prefix = "Artifact upload failed: "
        with (
            errors_as(DataError, to.uri, "upload to", kept=path, prefix=prefix),
            path.open("rb") as source,
        ):
            before = Signature.of(os.fstat(source.fileno()))
            transfer = Transfer(
                s3=self._s3,
                source=source,
                before=before,
                to=to,
                moved=self._moved,
                extra=self._extra,
                found=lambda count: self._found(count, before.size, to),
            )
            try:
                s3_send.send(transfer, self._uploads)
            except Changed as error:
                what = f"{prefix}{path} changed while it was sent"
                raise DataError(what, do=f"It is kept: {path}") from error

    def _found(self, count: int, size: int, to: S3Location) -> None:
        if count:
            text = (
                f"{human(count)} of {human(size)} have arrived at {to.uri} before; the rest is sent"
            )
            self._observer(Note(text=text))
            self._moved(count, False)

    def _moved(self, count: int, stored: bool) -> bool:
        with self._lock:
            self._done += 0 if stored else count
            # Bytes that have to go out again are not shown as lost.
            if self._done > self._told:
                self._told = self._done
                self._observer(
                    Progress(activity=self._activity, done=self._told, total=self._total)
                )
        return not self.over
