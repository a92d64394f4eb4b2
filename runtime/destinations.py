"""Where a synchronised directory goes: a directory of this machine, or an S3 prefix."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from hotfire.runtime import s3_send
from hotfire.runtime.copies import copy_exactly
from hotfire.runtime.errors import DataError, HotfireError
from hotfire.runtime.s3 import S3, errors_as
from hotfire.runtime.s3_abort import take_back
from hotfire.runtime.s3_transfer import Transfer
from hotfire.runtime.storage import LocalLocation, Location, S3Location, local_fault
from hotfire.runtime.synced import Changed, Signature
from hotfire.runtime.uploads import Uploads

TEMPORARY = ".hotfire-sync."
"""What the names of files on their way begin with."""
_LONGEST_KEY = 1024

Moved = Callable[[bool], bool]
"""Called after every piece of a transfer, with whether that piece need never be sent again; answers whether to go on."""


class Destination(Protocol):
    """Where files go. Every method may be called from several threads."""

    @property
    def uri(self) -> str: ...

    @property
    def workers(self) -> int:
        """Transfers that make sense at once."""

    def overlaps(self, directory: Path) -> bool:
        """One lies in the other, so that uploads would be uploaded again."""

    def begin(self) -> None:
        """Make ready, and clear away what an earlier, killed transfer may have left; raises like :meth:`put`."""

    def end(self) -> None:
        """Clear away, as far as that works, what was begun and will not go on."""

    def refuses(self, name: str) -> str | None:
        """Why no file of that name can ever be stored, or None."""

    def put(self, source: BinaryIO, before: Signature, name: str, moved: Moved) -> None:
        """Store ``source``, which was like ``before``, under ``name``, whole or not at all, in constant memory.

        Raises:
            HotfireError, OSError: it did not work; it may work later.
            Abandoned: ``moved`` answered no.
            Changed: ``source`` changed meanwhile, and nothing was stored.
        """

    def delete(self, name: str) -> None:
        """Remove ``name`` if it is there; raises like :meth:`put`."""


def destination(location: Location, uploads: Uploads, s3: S3 | None = None) -> Destination:
    """Where :class:`~hotfire.runtime.sync.Sync` uploads to for a CheckpointConfig's S3Uri."""
    if isinstance(location, LocalLocation):
        return LocalDestination(location.path)
    return S3Destination(location, s3 or S3(), uploads)


@dataclass(frozen=True)
class LocalDestination:
    """A directory of this machine. A file appears there whole, under its name, in one step."""

    path: Path
    workers: int = 2

    @property
    def uri(self) -> str:
        return str(self.path)

    def refuses(self, name: str) -> str | None:
        return None

    def overlaps(self, directory: Path) -> bool:
        ours, theirs = (Path(os.path.realpath(one)) for one in (self.path, directory))
        return ours.is_relative_to(theirs) or theirs.is_relative_to(ours)

    def begin(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        # A temporary file that nobody locks is of a transfer that was killed.
        for left in self.path.glob(f"{TEMPORARY}*"):
            with contextlib.suppress(OSError), left.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()

    def end(self) -> None:
        """Nothing: no file of ours is left."""

    def put(self, source: BinaryIO, before: Signature, name: str, moved: Moved) -> None:
        try:
            descriptor, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=self.path)
        except OSError as error:
            raise self._fault(error, name) from error
        try:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # As the copied file is: a checkpoint that was private stays private.
            os.fchmod(descriptor, os.fstat(source.fileno()).st_mode & 0o777)
            copy_exactly(source.fileno(), descriptor, before.size, lambda: moved(False))
            if Signature.of(os.fstat(source.fileno())) != before:
                raise Changed
            self._place(temporary, self.path / name)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
            if isinstance(error, OSError):
                raise self._fault(error, name) from error
            raise
        finally:
            os.close(descriptor)

    def _fault(self, error: OSError, name: str) -> HotfireError:
        return local_fault(error, self.path / name, "Make room or rights there.")

    @staticmethod
    def _place(temporary: str, target: Path) -> None:
        try:
            os.replace(temporary, target)  # noqa: PTH105
        except FileNotFoundError:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary, target)  # noqa: PTH105

    def delete(self, name: str) -> None:
        target = self.path / name
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            target.unlink()
        # As below an S3 prefix, a folder is there as long as something is in it.
        for parent in list(PurePosixPath(name).parents)[:-1]:
            try:
                (self.path / parent).rmdir()
            except OSError:
                return


@dataclass(frozen=True)
class S3Destination:
    """A prefix of a bucket. A large file goes on where its last try failed."""

    location: S3Location
    s3: S3
    uploads: Uploads
    workers: int = 8

    @property
    def uri(self) -> str:
        return f"s3://{self.location.bucket}/{folder_key(self.location)}"

    def _key(self, name: str) -> str:
        return folder_key(self.location) + name

    def refuses(self, name: str) -> str | None:
        try:
            length = len(self._key(name).encode())
        except UnicodeEncodeError:
            return "its name is not UTF-8, and the keys of S3 are"
        return f"its key has more than {_LONGEST_KEY} bytes" if length > _LONGEST_KEY else None

    def overlaps(self, directory: Path) -> bool:
        return False

    def begin(self) -> None:
        """Nothing: an upload that was killed is no object, and its owner's next one takes it back."""

    def end(self) -> None:
        take_back(self.s3, self.uploads)

    def put(self, source: BinaryIO, before: Signature, name: str, moved: Moved) -> None:
        to = S3Location(self.location.bucket, self._key(name))
        transfer = Transfer(
            s3=self.s3,
            source=source,
            before=before,
            to=to,
            moved=lambda _, stored: moved(stored),
            patient=False,  # the ledger is: other files may go meanwhile
        )
        with errors_as(DataError, to.uri, "upload to"):
            s3_send.send(transfer, self.uploads)

    def delete(self, name: str) -> None:
        key = self._key(name)
        with errors_as(DataError, f"s3://{self.location.bucket}/{key}", "delete"):
            self.s3.client.delete_object(Bucket=self.location.bucket, Key=key)


def folder_key(location: S3Location) -> str:
    """The key prefix, with its slash, below which relative names are appended; empty for a whole bucket."""
    key = location.key.rstrip("/")
    return f"{key}/" if key else ""
