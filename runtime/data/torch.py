"""Channels as ``IterableDataset``s, for a DataLoader and MpDeviceLoader on top."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from hotfire.runtime.data import recordio
from hotfire.runtime.data.pipes import PipeChannel
from hotfire.runtime.data.sharing import Share, follow, lead

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

    A FIFO has one reader: local rank 0 (its DataLoader worker 0) reads, and hands every other rank and worker of the
    host its records as they go, record ``i`` of the stream to process ``i % count``. So all of them must iterate, with
    the same batch size; ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE`` say how many ranks there are. Where a rank or worker
    has a channel of its own, write ``{rank}`` (the local one) and ``{worker}`` in their places in ``channel``.
    Keep DataLoader's workers alive (``persistent_workers``), so that they go on with the next epoch.

    Args:
        drop_last: leave out the records after the last one of which every process gets as many; ranks that step
            together need it.
        timeout: seconds to wait for a FIFO and for the other processes.

    Raises, when iterated:
        TimeoutError: no FIFO, or a process of the host does not iterate.
        SharedFifoError: a process that knows of no other ranks reads the same FIFO.
    """

    def __init__(
        self,
        channel: str,
        decode: Decode = same,
        *,
        base: Path | None = None,
        timeout: float = 60.0,
        drop_last: bool = False,
    ) -> None:
        super().__init__()
        self._channel, self._decode = channel, decode
        self._base, self._timeout, self._drop_last = base, timeout, drop_last
        self._pipes: PipeChannel | None = None

    def __iter__(self) -> Iterator[Any]:
        name, index, count = self._place()
        if self._pipes is None:
            self._pipes = PipeChannel(name, base=self._base, timeout=self._timeout)
        share = Share(
            name=name, place=self._pipes.place, index=index, count=count, timeout=self._timeout
        )
        with closing(self._records(self._pipes, share)) as records:
            yield from map(self._decode, records)

    def _records(self, pipes: PipeChannel, share: Share) -> Generator[bytes]:
        if share.index:
            yield from follow(share)
            return
        with pipes.epoch() as stream:
            records = recordio.read(stream)
            yield from (
                lead(records, share, drop_last=self._drop_last) if share.count > 1 else records
            )

    def _place(self) -> tuple[str, int, int]:
        """The channel's name for this process, and its number among the processes that read the same."""
        rank, ranks = _environment("LOCAL_RANK", 0), _environment("LOCAL_WORLD_SIZE", 1)
        worker, workers = _worker()
        name, index, count = self._channel, 0, 1
        for what, number, numbers in (("rank", rank, ranks), ("worker", worker, workers)):
            if f"{{{what}}}" in name:
                name = name.replace(f"{{{what}}}", str(number))
            else:
                index, count = index * numbers + number, count * numbers
        return name, index, count


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
