"""model.tar.gz and output.tar.gz, packed and laid out as the service does it (contract 2.6, 5.6)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotfire.runtime.archives import Packed, described, lay, pack
from hotfire.runtime.errors import DataError
from hotfire.runtime.events import Note, Observer, ignore
from hotfire.runtime.layout import MlTree
from hotfire.runtime.s3 import S3
from hotfire.runtime.s3_upload import upload
from hotfire.runtime.spec import TrainingJob
from hotfire.runtime.storage import (
    LocalLocation,
    Locations,
    S3Location,
)
from hotfire.runtime.trees import merge
from hotfire.runtime.uploads import Uploads


@dataclass(frozen=True)
class Destinations:
    """URIs of the two artifacts; with CompressionType NONE prefixes that end in ``/``."""

    model: str
    output: str


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
                packed: Packed | None = described(merged, path, size, (), ignore)
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
