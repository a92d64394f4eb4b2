"""Which object of a job's channels goes to which host, in which order: without starting or downloading anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotfire.runtime import channels, request
from hotfire.runtime.channel_parts import Item
from hotfire.runtime.data_settings import DataSettings
from hotfire.runtime.errors import ValidationError
from hotfire.runtime.layout import JobDir
from hotfire.runtime.spec import TrainingJob
from hotfire.runtime.storage import Locations, human
from hotfire.runtime.surroundings import Surroundings


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one host gets of one channel in one epoch."""

    channel: str
    mode: str
    host: str
    epoch: int
    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(one.bytes or 0 for one in self.items)

    def to_json(self) -> dict[str, Any]:
        return {
            "Channel": self.channel,
            "InputMode": self.mode,
            "Host": self.host,
            "Epoch": self.epoch,
            "Bytes": self.bytes,
            "Objects": [
                {"Uri": one.uri, "Bytes": one.bytes, "Path": one.path} for one in self.items
            ],
            "Notes": list(self.notes),
        }

    def lines(self, limit: int) -> Iterator[str]:
        """For people: a headline, up to ``limit`` objects, the notes."""
        at = f" epoch {self.epoch}" if self.mode == "Pipe" else ""
        yield f"{self.channel} ({self.mode}) on {self.host}{at}: {len(self.items)} objects, {human(self.bytes)}"
        for one in self.items[:limit]:
            size = "?" if one.bytes is None else human(one.bytes)
            to = f" -> {one.path}" if one.path else ""
            yield f"  {size:>10}  {one.uri}{to}"
        if len(self.items) > limit:
            yield f"  ... and {len(self.items) - limit} more"
        for note in self.notes:
            yield f"  note: {note}"


def preview_of(
    raw: Mapping[str, Any],
    around: Surroundings,
    *,
    only: Sequence[str] = (),
    hosts: Sequence[str] = (),
    epoch: int = 0,
    maps: Sequence[str] = (),
    settings: DataSettings | None = None,
) -> list[Share]:
    """The shares of a request's channels; ``only`` (channels) and ``hosts`` narrow them down.

    Raises:
        ValidationError: the request or its data is not good, or there is no such channel or host.
    """
    job = request.parse(raw, region=around.region, cache_dir=around.cache)
    _known("channel", only, [one.channel_name for one in job.input_data_config])
    _known("host", hosts, job.resource_config.hosts)
    inputs = _inputs(job, around, maps, settings)
    return [
        Share(
            channel=one.name,
            mode=str(one.channel.input_mode),
            host=host,
            epoch=epoch,
            items=tuple(one.preview(host, epoch)),
            notes=one.notes,
        )
        for one in inputs
        if not only or one.name in only
        for host in job.resource_config.hosts
        if host in one.hosts and (not hosts or host in hosts)
    ]


def _inputs(
    job: TrainingJob, around: Surroundings, maps: Sequence[str], settings: DataSettings | None
) -> tuple[channels.ChannelInput, ...]:
    staging = JobDir(around.store.jobs / job.training_job_name).data
    locations = Locations.parse(maps, around.cwd)
    return channels.plan_inputs(job, locations, staging, around.cache, settings=settings)


def _known(what: str, asked: Sequence[str], there: Sequence[str]) -> None:
    if stray := [one for one in asked if one not in there]:
        raise ValidationError(
            f"the job has no {what} {stray[0]!r}", do=f"It has: {', '.join(there)}."
        )
