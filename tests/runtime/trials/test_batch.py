"""The search for the largest batch, and the learning rates that go with it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.runtime.trials.batch import PRECISION, Rates, largest


@given(st.integers(0, 5000), st.integers(1, 600), st.integers(1, 5000))
def test_the_search_finds_the_largest_that_fits(capacity: int, start: int, ceiling: int) -> None:
    asked: list[int] = []

    def fits(batch: int) -> bool:
        asked.append(batch)
        return batch <= capacity

    found = largest(fits, start, ceiling)
    possible = min(capacity, ceiling)
    assert found <= possible
    # Exact below 8, then to a multiple of 8, then to one part in PRECISION.
    assert possible - found < max(8 if possible >= 8 else 1, found / PRECISION * 2)
    assert found == 0 or found in asked, "the answer was tried"
    assert len(asked) == len(set(asked)), "nothing is tried twice"
    assert all(1 <= batch <= ceiling for batch in asked)
    assert len(asked) <= 2 * math.log2(max(ceiling, start)) + 2


def test_rates_scale_with_the_global_batch() -> None:
    rates = Rates(base_rate=1e-3, base_batch=8, global_batch=128)
    assert rates.linear == pytest.approx(16e-3)
    assert rates.square_root == pytest.approx(4e-3)
    assert rates.warmup_ratio == 0.1


def test_a_batch_that_has_not_grown_needs_no_warm_up() -> None:
    rates = Rates(base_rate=1e-3, base_batch=8, global_batch=8)
    assert (rates.linear, rates.square_root, rates.warmup_ratio) == (1e-3, 1e-3, 0.0)
