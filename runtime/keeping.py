"""Checkpoints of a job: restored before its hosts start, kept at their destination while they run (contract 5.7)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from hotfire.runtime.backend import Mount, MountMode
from hotfire.runtime.events import Observer
from hotfire.runtime.layout import ML_ROOT, HostDir
from hotfire.runtime.spec import CheckpointConfig, TrainingJob
from hotfire.runtime.storage import Locations

if TYPE_CHECKING:
    from hotfire.runtime.sync import Sync


def directory_of(config: CheckpointConfig, host: HostDir) -> Path:
    """Where a host's checkpoint directory is on this machine."""
    inside = PurePosixPath(config.local_path)
    if inside.is_relative_to(ML_ROOT):
        return host.ml.root / inside.relative_to(ML_ROOT)
    return host.root / "checkpoints"


def mounts(job: TrainingJob, host: HostDir) -> tuple[Mount, ...]:
    """What a LocalPath outside /opt/ml, such as ``/state``, needs."""
    config = job.checkpoint_config
    if config is None or PurePosixPath(config.local_path).is_relative_to(ML_ROOT):
        return ()
    target = PurePosixPath(config.local_path)
    source = directory_of(config, host)
    return (Mount(source=source, target=target, mode=MountMode.READ_WRITE),)


class Kept:
    """The checkpoints of an attempt's hosts while they are kept."""

    def __init__(self, syncs: Sequence[Sync] = ()) -> None:
        self._syncs = syncs

    def lose(self) -> None:
        """The hosts have vanished, and with them what was not uploaded: the block ends without a last upload."""
        for one in self._syncs:
            one.abandon()


@contextlib.contextmanager
def kept(
    job: TrainingJob,
    dirs: Mapping[str, HostDir],
    locations: Locations,
    observer: Observer,
    asks: Callable[[], int],
    uploads: Path,
) -> Iterator[Kept]:
    """Every host starts with what the destination holds, and its changes are uploaded until the block has ended.

    ``asks``: how often somebody has asked the job to stop; see :class:`~hotfire.runtime.sync.Sync`. ``uploads``: where
    uploads in progress are noted (JobDir.uploads).

    Raises:
        DataError: the destination cannot be read at the start, or not be written for good.
    """
    config = job.checkpoint_config
    if config is None:
        yield Kept()
        return
    # Only jobs with checkpoints pay for these.
    from hotfire.runtime import checkpoints, destinations
    from hotfire.runtime.sync import Sync
    from hotfire.runtime.uploads import Uploads

    location = locations.resolve(config.s3_uri)
    directories = {name: directory_of(config, host) for name, host in dirs.items()}
    known = checkpoints.restore(location, [*directories.values()], observer)
    with ExitStack() as undo:
        yield Kept(
            [
                undo.enter_context(
                    Sync(
                        directory,
                        destinations.destination(location, Uploads(uploads / host)),
                        observer,
                        known=restored,
                        asks=asks,
                    )
                )
                for (host, directory), restored in zip(directories.items(), known, strict=True)
            ]
        )
