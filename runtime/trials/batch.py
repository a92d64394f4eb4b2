"""The largest batch that fits, and the learning rate that goes with it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

ALIGNMENT = 8
"""Batches of 8 and more are searched in multiples of 8: odd sizes waste the lanes of every device."""

PRECISION = 32
"""The search ends when the answer is known to one part in this many: a trial costs a compilation."""

WARM_UP_SHARE = 0.1


def largest(fits: Callable[[int], bool], start: int, ceiling: int) -> int:
    """The largest batch up to ``ceiling`` for which ``fits`` is true; 0 when not even 1 fits.

    Doubles from ``start`` while it fits, halves while it does not, and bisects what is left. ``fits`` is asked once
    for each batch; it is taken to be true up to some size and false beyond.
    """
    good, bad = 0, ceiling + 1
    batch = min(start, ceiling)
    while good < batch < bad:
        if fits(batch):
            good = batch
            batch = min(batch * 2, ceiling)
        else:
            bad = batch
            if good:
                break
            batch //= 2
    while (middle := _between(good, bad)) is not None:
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def _between(good: int, bad: int) -> int | None:
    """The middle of the open interval, aligned; None where there is nothing left to ask."""
    unit = max(ALIGNMENT, 1 << (good // PRECISION).bit_length() >> 1) if good >= ALIGNMENT else 1
    middle = (good + bad) // 2 // unit * unit
    if middle <= good:
        middle = (good // unit + 1) * unit
    return middle if good < middle < bad else None


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Learning rates for ``global_batch``, from one that is right for ``base_batch``.

    Linear scaling is for SGD (Goyal et al. 2017, arXiv:1706.02677), the square root for Adam and AdamW (Malladi et
    al. 2022, arXiv:2205.10287). Both need a warm-up from the base rate when the batch has grown.
    """

    base_rate: float
    base_batch: int
    global_batch: int

    @property
    def factor(self) -> float:
        return self.global_batch / self.base_batch

    @property
    def linear(self) -> float:
        return self.base_rate * self.factor

    @property
    def square_root(self) -> float:
        return self.base_rate * math.sqrt(self.factor)

    @property
    def warmup_ratio(self) -> float:
        """Share of all steps; a rule of thumb, 0 where the rate does not grow."""
        return WARM_UP_SHARE if self.factor > 1 else 0.0
