"""Channels as ``IterableDataset``s, for a DataLoader and MpDeviceLoader on top."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from hotfire.runtime.data import recordio
from hotfire.runtime.data.pipes import PipeChannel

Decode = Callable[[bytes], Any]
"""From a record to a sample."""


def same(record: bytes) -> bytes:
    return record


def _worker() -> tuple[int, int]:
    """Number and count of this DataLoader's workers."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def _environment(name: str, default: int) -> int:
    return int(os.environ.get(name) or default)


class PipeDataset(IterableDataset[Any]):
    """RecordIO records of a channel in Pipe mode; each iteration is one epoch.

    A FIFO has one reader. With several ranks or workers on a host, give each a channel of its own and write
    ``{rank}`` (the local rank) and ``{worker}`` in their places in ``channel``: ``train-{rank}-{worker}``.
    Keep DataLoader's workers alive (``persistent_workers``), so that they go on with the next epoch.

    Raises, when iterated:
        ValueError: several processes of this host would read the same FIFO.
    """

    def __init__(
        self,
        channel: str,
        decode: Decode = same,
        *,
        base: Path | None = None,
        timeout: float = 60.0,
    ) -> None:
        super().__init__()
        self._channel, self._decode = channel, decode
        self._base, self._timeout = base, timeout
        self._pipes: PipeChannel | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._pipes is None:
            self._pipes = PipeChannel(self._name(), base=self._base, timeout=self._timeout)
        with self._pipes.epoch() as stream:
            yield from map(self._decode, recordio.read(stream))

    def _name(self) -> str:
        rank, ranks = _environment("LOCAL_RANK", 0), _environment("LOCAL_WORLD_SIZE", 1)
        worker, workers = _worker()
        for what, count in (("rank", ranks), ("worker", workers)):
            if count > 1 and f"{{{what}}}" not in self._channel:
                raise ValueError(
                    f"{count} {what}s would read the FIFOs of channel {self._channel}, which have one reader: "
                    f"give each a channel and name it with {{{what}}}"
                )
        return self._channel.replace("{rank}", str(rank)).replace("{worker}", str(worker))


class RecordDataset(IterableDataset[Any]):
    """RecordIO files of a channel in File or FastFile mode: each record goes to one worker of one rank.

    ``rank`` and ``world`` default to RANK and WORLD_SIZE. When the channel itself is sharded over hosts, they are the
    local ones. Ranks get records whose count differs by one at most.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        decode: Decode = same,
        *,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        super().__init__()
        self._paths, self._decode = sorted(paths), decode
        self._rank = _environment("RANK", 0) if rank is None else rank
        self._world = _environment("WORLD_SIZE", 1) if world is None else world

    def __iter__(self) -> Iterator[Any]:
        worker, workers = _worker()
        # A rank's own records are r, r + world, ...: of these, worker w takes every workers-th.
        start, step = self._rank + self._world * worker, self._world * workers
        with closing(self._records()) as records:
            yield from map(self._decode, islice(records, start, None, step))

    def _records(self) -> Any:
        for path in self._paths:
            with path.open("rb") as stream:
                yield from recordio.read(stream)
