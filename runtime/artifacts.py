"""model.tar.gz and output.tar.gz, packed and laid out as the service does it (contract 2.6, 5.6)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hotfire.runtime.copies import copy_file
from hotfire.runtime.errors import DataError
from hotfire.runtime.events import Note, Observer, ignore
from hotfire.runtime.layout import MlTree
from hotfire.runtime.model_files import inspect
from hotfire.runtime.s3 import S3
from hotfire.runtime.s3_upload import upload
from hotfire.runtime.spec import TrainingJob
from hotfire.runtime.storage import (
    LocalLocation,
    Locations,
    S3Location,
    human,
    local_fault,
    nearest_existing,
    replacing,
)
from hotfire.runtime.tarball import Meter, write_archive
from hotfire.runtime.trees import Merged, merge, printable
from hotfire.runtime.uploads import Uploads

__all__ = [
    "Destinations",
    "Packed",
    "Stored",
    "destinations",
    "inspect",
    "lay",
    "pack",
    "store_outputs",
]


@dataclass(frozen=True)
class Destinations:
    """URIs of the two artifacts; with CompressionType NONE prefixes that end in ``/``."""

    model: str
    output: str


@dataclass(frozen=True, kw_only=True)
class Packed:
    """One artifact: an archive, or with CompressionType NONE a directory."""

    path: Path
    """Where it was written; gone again when it went to S3."""
    bytes: int
    """On disk; equals ``source_bytes`` when uncompressed."""
    files: int
    source_bytes: int
    largest: tuple[tuple[str, int], ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a job leaves: None where the hosts wrote nothing (the service then makes no object)."""

    destinations: Destinations
    model: Packed | None
    output: Packed | None

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(
            text for one in (self.model, self.output) if one is not None for text in one.warnings
        )


def destinations(job: TrainingJob) -> Destinations:
    """``<S3OutputPath>/<job>/output/model.tar.gz`` and ``output.tar.gz``; a slash at the path's end is tolerated."""
    config = job.output_data_config
    base = f"{config.s3_output_path.rstrip('/')}/{job.training_job_name}/output"
    if config.compression_type == "NONE":
        return Destinations(f"{base}/model/", f"{base}/data/")
    return Destinations(f"{base}/model.tar.gz", f"{base}/output.tar.gz")


def store_outputs(
    job: TrainingJob,
    trees: Sequence[tuple[str, MlTree]],
    locations: Locations,
    staging: Path,
    observer: Observer,
    *,
    s3: S3 | None = None,
    uploads: Uploads | None = None,
    resume: bool = False,
) -> Stored:
    """Pack model/ and output/data of all hosts and bring them to S3OutputPath.

    ``resume`` goes on where an earlier call failed: what lies in ``staging`` is whole, and is not packed again; of a
    large file only the parts are sent that ``uploads`` does not know to be there.

    ``trees`` in the order of hosts: the last one wins a clash. ``staging`` (JobDir.artifacts) holds what is on its way
    to S3; local destinations are written in place. The observer may be called from another thread, one call at a time.

    Raises:
        DataError: a disk is full or S3 refuses; everything that was packed is kept and named.
    """
    to = destinations(job)
    model = [(host, tree.model) for host, tree in trees]
    output = [(host, tree.output_data) for host, tree in trees]
    store = _Store(job, locations, staging, observer, s3 or S3(), uploads, resume)
    done: list[Packed | None] = []
    failures: list[DataError] = []
    for uri, sources in ((to.model, model), (to.output, output)):
        try:
            done.append(store.put(uri, sources))
        except DataError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    _warn_of_recorded_behaviour(output, observer)
    return Stored(destinations=to, model=done[0], output=done[1])


def _warn_of_recorded_behaviour(output: Sequence[tuple[str, Path]], observer: Observer) -> None:
    others = [host for host, top in output[1:] if merge([(host, top)]).members]
    if others:
        text = (
            f"{', '.join(others)} wrote to output/data: merged as documented, but recorded SageMaker jobs kept "
            f"only {output[0][0]}'s files in output.tar.gz"
        )
        observer(Note(text=text, warning=True))


@dataclass(frozen=True)
class _Store:
    job: TrainingJob
    locations: Locations
    staging: Path
    observer: Observer
    s3: S3
    uploads: Uploads | None
    resume: bool

    def put(self, uri: str, sources: Sequence[tuple[str, Path]]) -> Packed | None:
        location = self.locations.resolve(uri)
        write = lay if uri.endswith("/") else pack
        try:
            if isinstance(location, LocalLocation):
                return write(sources, location.path, self.observer)
            path = self.staging / uri.rstrip("/").rpartition("/")[2]
            if self.resume and path.exists():
                merged = merge(sources)
                size = path.stat().st_size if path.is_file() else merged.size
                packed: Packed | None = _packed(merged, path, size, (), ignore)
            else:
                packed = write(sources, path, self.observer)
            if packed is not None:
                self._upload(path, location)
            return packed
        except DataError as error:
            again = f"Then: hotfire upload {self.job.training_job_name}"
            raise DataError(error.what, do=f"{error.do.rstrip('.')}. {again}") from error

    def _upload(self, path: Path, to: S3Location) -> None:
        """An archive, or every file of a directory; what has arrived goes, so that the rest can be sent later."""
        activity = f"upload {path.name}"
        if path.is_file():
            self._send([(path, to)], activity)
            return
        files = sorted(one for one in path.rglob("*") if one.is_file())
        found = [
            (file, S3Location(to.bucket, to.key + file.relative_to(path).as_posix()))
            for file in files
        ]
        # Links first: their targets go once they have been sent.
        for links in (True, False):
            self._send([one for one in found if one[0].is_symlink() is links], f"{activity}/")
        shutil.rmtree(path)

    def _send(self, files: Sequence[tuple[Path, S3Location]], activity: str) -> None:
        def sent(file: Path) -> None:
            if not file.is_symlink():
                file.unlink()

        upload(
            self.s3,
            files,
            self.observer,
            activity,
            kms_key_id=self.job.output_data_config.kms_key_id,
            uploads=self.uploads,
            sent=sent,
        )


def pack(
    sources: Sequence[tuple[str, Path]], destination: Path, observer: Observer
) -> Packed | None:
    """One gzip archive of the merged trees, or None where there is nothing to pack.

    Members are relative without ``./``, directories included, owner 0:0 without names (contract 5.6), in byte order
    and with whole seconds, so that equal trees give equal archives. PAX headers carry long and non-ASCII names and
    files above 8 GiB. Hard links stay links.

    Raises:
        DataError: no room for the archive; the hosts' files stay.
    """
    merged = merge(sources)
    if not merged.members:
        return None
    activity = destination.name
    _mention_little_room(merged, destination, observer)
    try:
        with replacing(destination) as temporary:
            warnings = write_archive(merged, temporary, Meter(observer, activity, merged.size))
    except OSError as error:
        raise _no_artifact(error, destination, sources) from error
    return _packed(merged, destination, destination.stat().st_size, warnings, observer)


def lay(
    sources: Sequence[tuple[str, Path]], destination: Path, observer: Observer
) -> Packed | None:
    """The merged trees as the directory ``destination``, which appears whole and replaces an older one.

    Raises:
        DataError: no room; the hosts' files stay.
    """
    merged = merge(sources)
    if not merged.members:
        return None
    meter = Meter(observer, f"{destination.name}/", merged.size)
    try:
        with _replacing_directory(destination) as temporary:
            warnings = _copy_members(merged, temporary, meter)
    except OSError as error:
        raise _no_artifact(error, destination, sources) from error
    return _packed(merged, destination, merged.size, warnings, observer)


def _packed(
    merged: Merged, path: Path, size: int, warnings: Sequence[str], observer: Observer
) -> Packed:
    both = (*merged.warnings, *(f"{path.name}: {text}" for text in warnings))
    for text in both:
        observer(Note(text=text, warning=True))
    return Packed(
        path=path,
        bytes=size,
        files=len(merged.files),
        source_bytes=merged.size,
        largest=merged.largest(),
        warnings=both,
    )


def _no_artifact(
    error: OSError, destination: Path, sources: Sequence[tuple[str, Path]]
) -> DataError:
    kept = ", ".join(str(top) for _, top in sources)
    fault = local_fault(
        error,
        destination,
        f"Free space or choose another output path; the files are kept in {kept}",
    )
    return DataError(f"Artifact upload failed: {fault.what}", do=fault.do)


def _mention_little_room(merged: Merged, destination: Path, observer: Observer) -> None:
    """Weights hardly compress: what does not fit as it is will probably not fit packed."""
    free = shutil.disk_usage(nearest_existing(destination)).free
    if free < merged.size:
        text = f"{destination.name}: {human(merged.size)} to pack, {human(free)} free"
        observer(Note(text=text, warning=True))


def _copy_members(merged: Merged, top: Path, meter: Meter) -> list[str]:
    warnings = []
    for one in merged.members:
        target = top / one.name
        if one.is_dir:
            target.mkdir()
        elif one.link:
            target.symlink_to(one.link)
        else:
            try:
                copy_file(one.path, target, meter.moved)
            except (FileNotFoundError, PermissionError) as error:
                warnings.append(f"{printable(one.name)} on {one.host}: {error.strerror}; left out")
                continue
            target.chmod(one.status.st_mode & 0o777)
    meter.report()
    return warnings


@contextmanager
def _replacing_directory(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        new = scratch / "new"
        new.mkdir()
        yield new
        if target.exists():
            target.rename(scratch / "old")
        new.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
