"""Whether all members of a group make the same call, checked before any data moves. Needs torch.

gloo itself ends the process, or waits for ever, when ranks come with other shapes or to another
collective. A digest of 32 bytes goes round first; only when one differs do the texts follow.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

import torch

_TEXT_BYTES = 1 << 14
_HEADER_BYTES = 256
Gather = Callable[[torch.Tensor], list[torch.Tensor]]


def described(tensors: Sequence[torch.Tensor]) -> list[str]:
    """What must be equal on all ranks, tensor by tensor: ``float32[2, 3]``."""
    return [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors]


def check(gather: Gather, operation: str, items: Sequence[str], ranks: Sequence[int]) -> None:
    """Return when every member of `ranks` came with this `operation` and `items`.

    `gather` gives every member's tensor. Every member raises, and the group stays usable.

    Raises:
        ValueError: they differ; the message names the ranks in the minority.
    """
    text = "\n".join([operation, *items]).encode()
    digest = torch.frombuffer(bytearray(hashlib.sha256(text).digest()), dtype=torch.int64)
    digests = [tuple(part.tolist()) for part in gather(digest)]
    if len(set(digests)) == 1:
        return
    cut = text[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\n")
    parts = gather(torch.frombuffer(bytearray(cut), dtype=torch.uint8))
    texts = [part.numpy().tobytes().decode(errors="replace").rstrip("\n") for part in parts]
    raise ValueError(_difference(texts, ranks))


def _difference(texts: Sequence[str], ranks: Sequence[int]) -> str:
    """The odd ones out against the majority, or against the first member when there is none."""
    counts = Counter(texts)
    usual = max(counts, key=lambda text: (counts[text], text == texts[0]))
    odd = [i for i, text in enumerate(texts) if text != usual]
    first = odd[0]
    mine, theirs = texts[first].split("\n"), usual.split("\n")
    names = ", ".join(str(ranks[i]) for i in odd)
    who = f"rank{'s' * (len(odd) > 1)} {names}"
    other = f"rank {ranks[texts.index(usual)]}"
    if mine[0] != theirs[0]:
        return f"{who} called {mine[0]} while {other} called {theirs[0]}"
    if len(mine) != len(theirs):
        return (
            f"{who} came to {mine[0]} with {len(mine) - 1} tensors, {other} with {len(theirs) - 1}"
        )
    pairs = enumerate(zip(mine[1:], theirs[1:], strict=True))
    i, (ours, usually) = next(((i, pair) for i, pair in pairs if pair[0] != pair[1]), (0, ("", "")))
    return f"{who} came to {mine[0]} with {ours} as tensor {i}, {other} with {usually}"


def check_lengths(sent: torch.Tensor, expected: torch.Tensor, ranks: Sequence[int]) -> None:
    """``sent[i, j]`` elements go from member i to j, which expects ``expected[j, i]``.

    Raises:
        ValueError: some differ.
    """
    for i, j in (sent != expected.T).nonzero().tolist():
        raise ValueError(
            f"rank {ranks[i]} sends {sent[i, j]} elements to rank {ranks[j]}, "
            f"which expects {expected[j, i]}"
        )


def header(tensor: torch.Tensor) -> torch.Tensor:
    """What goes ahead of a single tensor: its type and shape, in a fixed number of bytes."""
    [text] = described([tensor])
    padded = text.encode()[:_HEADER_BYTES].ljust(_HEADER_BYTES)
    return torch.frombuffer(bytearray(padded), dtype=torch.uint8)


def check_header(found: torch.Tensor, expected: torch.Tensor, source: int) -> None:
    """Raise ValueError unless rank `source` sent what this rank expects."""
    if not torch.equal(found, expected):
        sent, wanted = (t.numpy().tobytes().decode().strip() for t in (found, expected))
        raise ValueError(f"rank {source} sent {sent} where {wanted} was expected")
