"""What is slow in the cloud about a channel, told before it is paid for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hotfire.runtime.sharding import Assignment
from hotfire.runtime.spec import InputMode
from hotfire.runtime.storage import human

MANY_FILES = 10_000
SMALL_BYTES = 1_000_000
"""Objects below this are small: requests and not bytes then set the time of a download."""
UNEVEN = 1.5
"""A shard this many times as large as the mean holds the other hosts up."""


def advise(
    name: str,
    sizes: Sequence[int],
    mode: InputMode,
    assignment: Assignment,
    bandwidth: float | None = None,
) -> Iterator[str]:
    """One line each; ``sizes`` are the objects' bytes in the order of the list, ``bandwidth`` bytes per second."""
    total = sum(sizes)
    if len(sizes) >= MANY_FILES and total / len(sizes) < SMALL_BYTES and mode is InputMode.FILE:
        yield (
            f"channel {name}: {len(sizes)} objects of {human(total / len(sizes))} on average download slowly on "
            "SageMaker, a request each; hotfire data pack makes few large ones"
        )
    if assignment.sharded and len(assignment.hosts) > 1 and total:
        yield from _balance(name, sizes, assignment)
    if bandwidth and mode is InputMode.FILE:
        share = max(_shares(sizes, assignment).values())
        yield (
            f"channel {name}: File mode downloads {human(share)} to a host before the job starts: "
            f"{_time(share / bandwidth)} at {human(bandwidth)}/s, billed; Pipe and FastFile start at once"
        )


def _shares(sizes: Sequence[int], assignment: Assignment) -> dict[str, int]:
    return {
        host: sum(sizes[position] for position in assignment.order(host))
        for host in assignment.hosts
    }


def _balance(name: str, sizes: Sequence[int], assignment: Assignment) -> Iterator[str]:
    shares = _shares(sizes, assignment)
    empty = [host for host, share in shares.items() if not share]
    if empty:
        yield f"channel {name}: {len(sizes)} objects for {len(shares)} hosts leave {', '.join(empty[:5])} without data"
    mean = sum(shares.values()) / len(shares)
    host, largest = max(shares.items(), key=lambda pair: pair[1])
    if largest > UNEVEN * mean:
        yield (
            f"channel {name}: ShardedByS3Key counts objects, not bytes: {host} gets {human(largest)}, "
            f"the mean is {human(mean)}"
        )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
