"""Where checkpoints go and come from: a local directory or an S3 prefix (contract 5.7)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from hotfire.runtime import download, keys, s3_send
from hotfire.runtime.errors import DataError, HotfireError, ValidationError
from hotfire.runtime.events import Observer, Progress
from hotfire.runtime.s3 import S3, errors_as
from hotfire.runtime.storage import LocalLocation, Location, S3Location, local_fault
from hotfire.runtime.sync import Destination, Moved
from hotfire.runtime.synced import UPLOADED, UPLOADING, Abandoned, Changed, Signature, look
from hotfire.runtime.uploads import Uploads

_TEMPORARY = ".hotfire-sync."
_STEP = 64 << 20
_LONGEST_KEY = 1024
_MARKERS = (UPLOADING, UPLOADED)


def destination(location: Location, uploads: Uploads, s3: S3 | None = None) -> Destination:
    """Where :class:`~hotfire.runtime.sync.Sync` uploads to for a CheckpointConfig's S3Uri."""
    if isinstance(location, LocalLocation):
        return LocalDestination(location.path)
    return S3Destination(location, s3 or S3(), uploads)


def restore(
    location: Location,
    directories: Sequence[Path],
    observer: Observer,
    *,
    s3: S3 | None = None,
    activity: str = "checkpoints",
) -> list[dict[str, Signature]]:
    """Copy everything below ``location`` into each directory (one per host), the agent's markers aside.

    Nothing there is not an error. An S3 prefix is downloaded once.

    Returns:
        Per directory what was put there: the ``known`` of :class:`~hotfire.runtime.sync.Sync`.

    Raises:
        DataError: it cannot be read, or a disk is full.
    """
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
    if not directories:
        return []
    if isinstance(location, LocalLocation):
        names = _names_below(location.path)
        _copy_all(location.path, directories, names, observer, activity)
    else:
        names = _fetch(location, directories[0], s3 or S3(), observer, activity)
        _copy_all(directories[0], directories[1:], names, observer, activity)
    return [
        {name: found for name in names if (found := look(f"{directory}/{name}", directory))}
        for directory in directories
    ]


def _restored(name: str) -> bool:
    return not name.endswith(_MARKERS) and not name.startswith(_TEMPORARY)


def _names_below(root: Path) -> list[str]:
    def refuse(error: OSError) -> None:
        raise local_fault(error, Path(error.filename or root), "Checkpoints must be readable.")

    try:
        if not stat.S_ISDIR(root.stat().st_mode):
            raise DataError(f"{root} is not a directory", do="Checkpoints go to a directory.")
    except FileNotFoundError:
        return []
    except OSError as error:
        refuse(error)
    found: list[str] = []

    for folder, _, files in os.walk(root, onerror=refuse):
        prefix = os.path.relpath(folder, root)
        found += [name if prefix == "." else f"{prefix}/{name}" for name in files]
    return sorted(name for name in found if _restored(name) and (root / name).is_file())


def _copy_all(
    source: Path, targets: Sequence[Path], names: Sequence[str], observer: Observer, activity: str
) -> None:
    done, total = 0, sum((source / name).stat().st_size for name in names) * len(targets)
    for target in targets:
        for name in names:
            path = target / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with (source / name).open("rb") as reader, path.open("wb") as writer:
                    size = os.fstat(reader.fileno()).st_size
                    copy_sparse(reader.fileno(), writer.fileno(), size, lambda: True)
            except OSError as error:
                raise local_fault(error, path, "Free space, and start the job again.") from error
            done += size
            observer(Progress(activity=activity, done=done, total=total))


def _fetch(
    location: S3Location, target: Path, s3: S3, observer: Observer, activity: str
) -> list[str]:
    prefix = folder_key(location)
    try:
        objects = s3.objects(S3Location(location.bucket, prefix))
        tree = keys.key_tree(prefix, [one.key for one in objects])
    except ValidationError as error:
        raise DataError(f"Data download failed: {error.what}", do=error.do) from error
    wanted = {
        str(tree.files[one.key]): download.Wanted(one, target / tree.files[one.key])
        for one in objects
        if one.key in tree.files and _restored(str(tree.files[one.key]))
    }
    if wanted:
        download.download(s3.client, list(wanted.values()), observer, activity)
    return sorted(wanted)


def folder_key(location: S3Location) -> str:
    """The key prefix, with its slash, below which relative names are appended; empty for a whole bucket."""
    key = location.key.rstrip("/")
    return f"{key}/" if key else ""


def copy_sparse(reader: int, writer: int, size: int, moved: Callable[[], bool]) -> None:
    """Copy ``size`` bytes between two open files; holes stay holes, and blocks are shared where the disk can.

    Raises:
        OSError: reading or writing failed.
        Changed: the source became shorter meanwhile.
        Abandoned: ``moved`` answered no.
    """
    os.ftruncate(writer, size)
    for start, end in _extents(reader, size):
        at = start
        while at < end:
            copied = _copy_range(reader, writer, at, min(_STEP, end - at))
            if not copied:
                raise Changed
            at += copied
            if not moved():
                raise Abandoned
    if os.fstat(reader).st_size < size:
        raise Changed


def _extents(reader: int, size: int) -> Iterator[tuple[int, int]]:
    at = 0
    while at < size:
        try:
            start = os.lseek(reader, at, os.SEEK_DATA)
            end = os.lseek(reader, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                return
            start, end = at, size  # a file system that knows no holes
        yield start, min(end, size)
        at = end


def _copy_range(reader: int, writer: int, at: int, count: int) -> int:
    try:
        if copied := os.copy_file_range(reader, writer, count, at, at):
            return copied
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    data = os.pread(reader, min(count, 1 << 20), at)  # two file systems, or an odd one
    written = 0
    while written < len(data):
        written += os.pwrite(writer, data[written:], at + written)
    return written


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
        for left in self.path.glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(OSError), left.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()

    def end(self) -> None:
        """Nothing: no file of ours is left."""

    def put(self, source: BinaryIO, before: Signature, name: str, moved: Moved) -> None:
        try:
            descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=self.path)
        except OSError as error:
            raise self._fault(error, name) from error
        try:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # As the copied file is: a checkpoint that was private stays private.
            os.fchmod(descriptor, os.fstat(source.fileno()).st_mode & 0o777)
            copy_sparse(source.fileno(), descriptor, before.size, lambda: moved(False))
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
        s3_send.take_back(self.s3, self.uploads)

    def put(self, source: BinaryIO, before: Signature, name: str, moved: Moved) -> None:
        to = S3Location(self.location.bucket, self._key(name))
        transfer = s3_send.Transfer(
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
