"""Batches of one static shape, the same global batches for every number of ranks. Needs torch.

A dataset here is a dict of equally long tensors, one row per example. XLA compiles one program
per input shape, so no batch is ever shorter than the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import torch

Rows = dict[str, torch.Tensor]
WEIGHTS = "weights"


def row_count(rows: Rows) -> int:
    """The number of examples.

    Raises:
        ValueError: the tensors differ in length, or there are none.
    """
    lengths = {name: len(tensor) for name, tensor in rows.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"a dataset's tensors have one length; these have {lengths}")
    return next(iter(lengths.values()))


class TrainBatches:
    """One epoch's micro-batches of `rank`, shuffled; iterate once per epoch.

    The epoch's order depends on `seed` and the epoch alone. It is cut into steps of
    ``batch_size * world_size * accumulation`` rows and every rank takes its part of each, so a
    step sees the same rows whatever the number of ranks. The last step is filled up with rows
    from the beginning of the order: no row is left out.
    """

    def __init__(
        self,
        rows: Rows,
        batch_size: int,
        *,
        rank: int,
        world_size: int,
        accumulation: int,
        seed: int,
    ) -> None:
        self._rows = rows
        self._batch_size = batch_size
        self._rank = rank
        self._seed = seed
        self._epoch, self._first = 0, 0
        self._micro = batch_size * world_size
        self._step = self._micro * accumulation
        self.row_count = row_count(rows)
        if self.row_count == 0:
            raise ValueError("the training data has no rows")
        self.steps_per_epoch = math.ceil(self.row_count / self._step)

    def set_epoch(self, epoch: int, *, first_step: int = 0) -> None:
        """What the next iteration yields: `epoch`, from its step `first_step` on."""
        self._epoch, self._first = epoch, first_step

    def order(self) -> torch.Tensor:
        """All rows of the epoch in training order, filled up to whole steps: int64."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch)
        order = torch.randperm(self.row_count, generator=generator)
        length = self.steps_per_epoch * self._step
        return order.repeat(math.ceil(length / self.row_count))[:length]

    def __iter__(self) -> Iterator[Rows]:
        order = self.order()
        for start in range(self._first * self._step, len(order), self._micro):
            first = start + self._rank * self._batch_size
            index = order[first : first + self._batch_size]
            yield {name: tensor[index] for name, tensor in self._rows.items()}


class EvalBatches:
    """`rank`'s part of the rows in order, padded to whole batches by rows of weight 0.

    Each batch has an extra float32 tensor "weights" of shape (batch_size,). Every rank gets the
    same number of batches.
    """

    def __init__(self, rows: Rows, batch_size: int, *, rank: int, world_size: int) -> None:
        self._rows = rows
        self._batch_size = batch_size
        self._rank = rank
        self._micro = batch_size * world_size
        self.row_count = row_count(rows)

    def __len__(self) -> int:
        return math.ceil(self.row_count / self._micro)

    def __iter__(self) -> Iterator[Rows]:
        for start in range(0, self.row_count, self._micro):
            first = start + self._rank * self._batch_size
            index = torch.arange(first, first + self._batch_size)
            weights = (index < self.row_count).float()
            batch = {name: t[index.clamp(max=self.row_count - 1)] for name, t in self._rows.items()}
            yield batch | {WEIGHTS: weights}


class StaticBatches:
    """Any loader's batches (dicts of tensors), all with `batch_size` rows; for MpDeviceLoader.

    A short batch is dropped, or padded by its own rows; then each batch has an extra float32
    tensor "weights" of shape (batch_size,), 0 for the padding: ``(losses * weights).sum() /
    weights.sum()``. With `lengths`, tensors of two and more dimensions are also padded along the
    second one, up to the smallest length that holds them, with ``fill.get(name, 0)``: one program
    for each length instead of one for each batch.
    """

    def __init__(
        self,
        loader: Iterable[Rows],
        batch_size: int,
        *,
        last: Literal["pad", "drop"] = "pad",
        lengths: Sequence[int] = (),
        fill: Mapping[str, float] | None = None,
    ) -> None:
        self._loader = loader
        self._batch_size = batch_size
        self._pads = last == "pad"
        self._lengths = sorted(lengths)
        self._fill = fill or {}

    def __len__(self) -> int:
        if not self._pads:
            raise TypeError("how many batches are dropped is known at the end only")
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Rows]:
        for batch in self._loader:
            count = row_count(batch)
            if count > self._batch_size:
                raise ValueError(f"a batch of {count} rows is larger than {self._batch_size}")
            if self._lengths:
                batch = {name: self._lengthened(name, t) for name, t in batch.items()}
            if self._pads:
                index = torch.arange(self._batch_size)
                padded = {name: t[index % count] for name, t in batch.items()}
                yield padded | {WEIGHTS: (index < count).float()}
            elif count == self._batch_size:
                yield batch

    def _lengthened(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < 2:
            return tensor
        fitting = [length for length in self._lengths if length >= tensor.shape[1]]
        if not fitting:
            raise ValueError(
                f"{name!r} has length {tensor.shape[1]}, the longest allowed is {self._lengths[-1]}"
            )
        more = (0, 0) * (tensor.dim() - 2) + (0, fitting[0] - tensor.shape[1])
        return torch.nn.functional.pad(tensor, more, value=self._fill.get(name, 0))
