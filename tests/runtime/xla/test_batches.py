"""Static shapes, and the same rows per step for every number of ranks."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="batches need the xla extra")

from hypothesis import given
from hypothesis import strategies as st

from hotfire.runtime.xla.data import EvalBatches, StaticBatches, TrainBatches, row_count

pytestmark = pytest.mark.xla

counts = st.integers(1, 40)
small = st.integers(1, 4)


def numbered(count: int) -> dict[str, torch.Tensor]:
    return {"row": torch.arange(count)}


def steps(count: int, per_rank: int, size: int, accumulation: int, epoch: int) -> list[list[int]]:
    """The rows of each step, sorted, over all ranks."""
    collected: list[list[int]] = []
    for rank in range(size):
        batches = TrainBatches(
            numbered(count),
            per_rank,
            rank=rank,
            world_size=size,
            accumulation=accumulation,
            seed=3,
        )
        batches.set_epoch(epoch)
        for i, batch in enumerate(batches):
            assert batch["row"].shape == (per_rank,)
            if i % accumulation == 0 and i // accumulation == len(collected):
                collected.append([])
            collected[i // accumulation] += batch["row"].tolist()
    return [sorted(step) for step in collected]


@given(count=counts, per_rank=small, size=small, accumulation=small, epoch=st.integers(0, 2))
def test_a_step_has_the_same_rows_however_it_is_divided(
    count: int, per_rank: int, size: int, accumulation: int, epoch: int
) -> None:
    alone = steps(count, per_rank * size * accumulation, 1, 1, epoch)
    assert steps(count, per_rank, size, accumulation, epoch) == alone
    assert set(itertools.chain.from_iterable(alone)) == set(range(count)), "no row is left out"


def test_epochs_differ_and_can_be_entered_in_the_middle() -> None:
    batches = TrainBatches(numbered(30), 2, rank=1, world_size=3, accumulation=2, seed=1)
    first = [b["row"].tolist() for b in batches]
    batches.set_epoch(1)
    second = [b["row"].tolist() for b in batches]
    assert first != second
    batches.set_epoch(1, first_step=2)
    assert [b["row"].tolist() for b in batches] == second[4:]


@given(count=counts, per_rank=small, size=small)
def test_evaluation_counts_every_row_once(count: int, per_rank: int, size: int) -> None:
    counted: list[int] = []
    lengths = set()
    for rank in range(size):
        batches = EvalBatches(numbered(count), per_rank, rank=rank, world_size=size)
        lengths.add(len(list(batches)))
        for batch in batches:
            assert batch["row"].shape == batch["weights"].shape == (per_rank,)
            assert batch["weights"].dtype == torch.float32
            counted += batch["row"][batch["weights"] == 1].tolist()
    assert sorted(counted) == list(range(count))
    assert len(lengths) == 1, "every rank evaluates as often: the others would wait for ever"


def test_uneven_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        row_count({"x": torch.zeros(3), "y": torch.zeros(4)})
    with pytest.raises(ValueError, match="no rows"):
        TrainBatches(numbered(0), 1, rank=0, world_size=1, accumulation=1, seed=0)


def loader_of(count: int, batch: int) -> list[dict[str, torch.Tensor]]:
    """Batches with a row number, and tokens of a length that differs from batch to batch."""
    firsts = range(0, count, batch)
    return [
        {
            "row": torch.arange(first, min(first + batch, count)),
            "tokens": torch.ones(min(batch, count - first), 3 + number, dtype=torch.int64),
        }
        for number, first in enumerate(firsts)
    ]


@given(st.integers(1, 40), small)
def test_a_padded_loader_has_one_batch_size_and_counts_each_row_once(count: int, size: int) -> None:
    batches = StaticBatches(loader_of(count, size), size)
    seen: list[int] = []
    for batch in batches:
        assert batch["row"].shape == batch["weights"].shape == (size,)
        seen += batch["row"][batch["weights"] == 1].tolist()
    assert seen == list(range(count))
    assert len(batches) == len(loader_of(count, size))


def test_a_short_batch_can_be_dropped() -> None:
    batches = list(StaticBatches(loader_of(10, 4), 4, last="drop"))
    assert [batch["row"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert "weights" not in batches[0]


def test_lengths_are_rounded_up_to_few_shapes() -> None:
    loader = loader_of(16, 4)
    batches = list(StaticBatches(loader, 4, lengths=[8, 4], fill={"tokens": -100}))
    assert [batch["tokens"].shape[1] for batch in batches] == [4, 4, 8, 8]
    assert batches[0]["tokens"][0].tolist() == [1, 1, 1, -100]
    with pytest.raises(ValueError, match="'tokens' has length 5, the longest allowed is 4"):
        list(StaticBatches(loader, 4, lengths=[4]))


def test_a_batch_beyond_the_size_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 4 rows is larger than 3"):
        list(StaticBatches(loader_of(4, 4), 3))
