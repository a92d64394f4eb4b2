"""What the caller chooses about input data beside the request: rules, samples, a bandwidth to reckon with, the cache's size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from hotfire.runtime.data_rules import DataRules
from hotfire.runtime.errors import ValidationError

CACHE_LIMIT = 100_000_000_000
"""Bytes that downloads may take in the cache, unless HOTFIRE_CACHE_LIMIT says otherwise."""

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?)i?[Bb]?")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A part of a channel: ``count`` units, or the ``share`` of them; the same one for the same ``seed``."""

    count: int | None = None
    share: Fraction = Fraction(1)
    seed: int = 0

    def size(self, units: int) -> int:
        """How many of ``units``; a share is at least one."""
        if self.count is not None:
            return min(self.count, units)
        return min(units, max(1, round(self.share * units)))


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    rules: DataRules = field(default_factory=DataRules)
    samples: Mapping[str, Sample] = field(default_factory=dict)
    """By channel."""
    bandwidth: float | None = None
    """Bytes per second that the service's download is assumed to reach."""
    cache_limit: int = CACHE_LIMIT
    thorough: bool = False
    """Nothing will start: there is time to walk local data for advice."""
    containers: bool = False
    """The hosts are containers, whose processes and whose engine are other users."""

    @classmethod
    def parse(
        cls,
        *,
        rules: Iterable[str] = (),
        samples: Iterable[str] = (),
        bandwidth: str = "",
        cache_limit: str = "",
        thorough: bool = False,
        containers: bool = False,
    ) -> DataSettings:
        """The texts of ``--data-rule``, ``--sample``, ``--input-bandwidth`` and HOTFIRE_CACHE_LIMIT.

        Raises:
            ValidationError: one of them makes no sense.
        """
        return cls(
            rules=DataRules.parse(rules),
            samples=dict(_sample(word) for word in samples),
            bandwidth=parse_rate(bandwidth) if bandwidth else None,
            cache_limit=parse_size(cache_limit, "HOTFIRE_CACHE_LIMIT")
            if cache_limit
            else CACHE_LIMIT,
            thorough=thorough,
            containers=containers,
        )


def _sample(word: str) -> tuple[str, Sample]:
    channel, _, rest = word.partition("=")
    match = re.fullmatch(r"(?:([0-9]+)|([0-9]+(?:\.[0-9]+)?)%)(?:@([0-9]+))?", rest)
    if not channel or match is None:
        raise ValidationError(
            f"--sample {word!r} is not CHANNEL=SHARE%", do="For example train=5% or train=100@7."
        )
    seed = int(match[3] or 0)
    if match[1]:
        sample = Sample(count=int(match[1]), seed=seed)
    else:
        sample = Sample(share=Fraction(match[2]) / 100, seed=seed)
    if sample.count == 0 or not 0 < sample.share <= 1:
        raise ValidationError(
            f"--sample {word}: not a part of a channel", do="Give more than 0 and at most 100%."
        )
    return channel, sample


def parse_size(text: str, what: str) -> int:
    """Bytes of ``1.5GB``, ``512 MB``, ``1000`` (powers of 1000).

    Raises:
        ValidationError: it is no size; the message begins with ``what``.
    """
    match = _SIZE.fullmatch(text.strip())
    value = int(Fraction(match[1]) * 1000 ** _POWERS[match[2]]) if match else 0
    if value <= 0:
        raise ValidationError(f"{what} {text!r} is not a size", do="Give for example 100MB or 2GB.")
    return value


def parse_rate(text: str) -> float:
    """Bytes per second of ``100MB/s``; the ``/s`` may be left out."""
    return float(parse_size(text.removesuffix("/s"), "--input-bandwidth"))
