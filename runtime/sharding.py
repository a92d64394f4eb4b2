"""Which unit of a channel goes to which host, and in which order (contract 3.4, 3.11). Pure.

A unit is an object; of an augmented manifest, a line. Everything is told by positions in the channel's list.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from hotfire.runtime.data_settings import Sample

Order = Sequence[int]
"""Positions in the channel's list."""


def shuffled(order: Order, seed: int, epoch: int) -> list[int]:
    """``order`` anew for one epoch: the same on every host, machine and Python.

    Fisher-Yates from the last position down, with the numbers of a Mersenne Twister seeded by the first 8 bytes
    (big endian) of SHA-256 over the text ``"<seed> <epoch>"``. The service's own generator is unknown (contract 3.11).
    """
    # random() is the one method whose sequence Python promises to keep for a seed.
    draw = random.Random(_number(f"{seed} {epoch}")).random
    result = list(order)
    for last in range(len(result) - 1, 0, -1):
        other = int(draw() * (last + 1))
        result[last], result[other] = result[other], result[last]
    return result


def sampled(units: int, sample: Sample | None) -> Order:
    """The positions of the sample, in the order of the list."""
    if sample is None:
        return range(units)
    chosen = shuffled(range(units), sample.seed, -1)[: sample.size(units)]
    return sorted(chosen)


def shard(order: Order, index: int, hosts: int, *, contiguous: bool = False) -> Order:
    """What host number ``index`` (from 0) of ``hosts`` takes: every ``hosts``-th unit (contract 3.4).

    ``contiguous``: the ``index``-th of runs whose lengths differ by one at most.
    """
    if not contiguous:
        return order[index::hosts]
    base, longer = divmod(len(order), hosts)
    start = index * base + min(index, longer)
    return order[start : start + base + (index < longer)]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The channel's units over hosts and epochs. ``hosts`` in numeric order: algo-2 before algo-10."""

    units: int
    hosts: tuple[str, ...]
    sharded: bool = False
    seed: int | None = None
    """Of ShuffleConfig; None keeps the list's order."""
    contiguous: bool = False
    sample: Sample | None = None

    def order(self, host: str, epoch: int = 0) -> Order:
        """Positions of the units that ``host`` gets in ``epoch``, in the order of their stream.

        Shuffled before they are shared out, so that a host sees other units in the next epoch.
        """
        order = sampled(self.units, self.sample)
        if self.seed is not None:
            order = shuffled(order, self.seed, epoch)
        if not self.sharded or len(self.hosts) == 1:
            return order
        return shard(order, self.hosts.index(host), len(self.hosts), contiguous=self.contiguous)


def numeric(hosts: frozenset[str]) -> tuple[str, ...]:
    """Hosts by their number: the service's list is alphabetical, its shards are not (contract 2.4, 3.4)."""
    return tuple(sorted(hosts, key=lambda host: int(host.rpartition("-")[2])))
