"""Input channels: what the request names, found on disk or in S3, and how it appears below /opt/ml/input/data.

:func:`plan_inputs` is the check at creation: it lists and refuses, and changes nothing. :func:`materialise` brings what
must be there before a host starts, and feeds what flows while hosts live. Each mode is a class that satisfies
:class:`ChannelInput`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Protocol

from hotfire.runtime.backend import Mount
from hotfire.runtime.channel_parts import Feeds, Item, Size
from hotfire.runtime.data_settings import DataSettings
from hotfire.runtime.errors import ValidationError
from hotfire.runtime.events import Observer
from hotfire.runtime.layout import ML_ROOT, HostDir
from hotfire.runtime.s3 import S3
from hotfire.runtime.spec import Channel, TrainingJob
from hotfire.runtime.storage import Locations

__all__ = ["ChannelInput", "Feeds", "Item", "Size", "fetch", "materialise", "plan_inputs"]


class ChannelInput(Protocol):
    """One channel, found and checked."""

    @property
    def channel(self) -> Channel: ...

    @property
    def name(self) -> str: ...

    @property
    def hosts(self) -> frozenset[str]:
        """Hosts that get the channel: all, or those of its InstanceGroupNames."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What differs from the service or will surprise there."""

    def mounts(self, host: str, ml_root: PurePosixPath = ML_ROOT) -> tuple[Mount, ...]:
        """What appears on ``host``; nothing on a host outside :attr:`hosts`. Sources are there after materialise."""

    def manifest(self) -> str | None:
        """The text of ``<channel>-manifest`` (contract 3.5), or None for a channel without one."""

    def size(self) -> Size:
        """Local channels are walked for this: ask when the job does not wait."""

    def preview(self, host: str, epoch: int) -> Iterator[Item]:
        """What ``host`` gets in an epoch, in the order of the stream or of the list."""

    def to_download(self) -> int:
        """Bytes that materialise will fetch."""

    def materialise(self, observer: Observer, feeds: Feeds) -> AbstractContextManager[None]:
        """Everything the hosts need, before they start; what must live as long as the job ends with the block.

        ``feeds`` knows the hosts' directories, and is told when a host can no longer be fed.

        Raises:
            DataError: a download failed (the service's "ClientError: Data download failed").
        """


def plan_inputs(
    job: TrainingJob,
    locations: Locations,
    staging: Path,
    cache: Path,
    *,
    s3: S3 | None = None,
    settings: DataSettings | None = None,
) -> tuple[ChannelInput, ...]:
    """Find every channel's data.

    ``staging`` is a directory of the job that need not exist yet: channels from S3 and parts of channels are put
    together there, from hard links into ``cache`` (:func:`hotfire.runtime.layout.cache_home`) or to the files.

    Raises:
        ValidationError: a path or prefix is not there, cannot be read, or its keys do not make a file tree.
    """
    settings = settings or DataSettings()
    names = [channel.channel_name for channel in job.input_data_config]
    if stray := sorted(set(settings.samples) - set(names)):
        raise ValidationError(
            f"--sample {stray[0]}: the job has no such channel", do=f"It has: {', '.join(names)}."
        )
    if not names:
        return ()
    # All kinds of channels and what they need: a job without any does not wait for it.
    from hotfire.runtime.channel_plan import Planner

    planner = Planner(
        job=job,
        locations=locations,
        staging=staging,
        cache=cache,
        s3=s3 or S3(),
        settings=settings,
    )
    return tuple(planner.plan(channel) for channel in job.input_data_config)


@contextmanager
def materialise(
    inputs: Sequence[ChannelInput],
    observer: Observer,
    dirs: Mapping[str, HostDir] | None = None,
) -> Iterator[Feeds]:
    """All channels, for the length of the block; ``dirs`` are the hosts' directories, which FIFOs are made in.

    Whoever runs the hosts looks at :attr:`Feeds.failure` while they live, and ends them when there is one.
    """
    feeds = Feeds(dirs)
    with ExitStack() as stack:
        for one in inputs:
            stack.enter_context(one.materialise(observer, feeds))
        yield feeds


def fetch(inputs: Sequence[ChannelInput], observer: Observer) -> None:
    """Download what must be; File channels need nothing afterwards."""
    with materialise(inputs, observer):
        pass
