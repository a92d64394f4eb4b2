"""One process with the global batch, two, four, and two hosts with two: the same training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.xla, pytest.mark.slow]
TOLERANCE = 1e-6

Parity = Callable[[str], dict[str, Any]]
SEVERAL = pytest.mark.parametrize("layout", ["2", "4", "2x2"])


def relative(a: list[float], b: list[float]) -> float:
    """The norm of the difference, in parts of the norm."""
    return math.dist(a, b) / math.hypot(*b)


def assert_same(found: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert found.keys() == expected.keys()
    worst = max((relative(found[name], expected[name]), name) for name in expected)
    assert worst[0] <= TOLERANCE, worst


@SEVERAL
def test_every_process_is_in_the_world(parity: Parity, layout: str) -> None:
    expected = {"2": 2, "4": 4, "2x2": 4}
    assert parity(layout)["world_size"] == expected[layout]


@SEVERAL
def test_users_script_has_the_gradients_and_losses_of_one_process(
    parity: Parity, layout: str
) -> None:
    found, alone = parity(layout)["user"], parity("1")["user"]
    assert_same(found["gradients"], alone["gradients"])
    assert found["losses"] == pytest.approx(alone["losses"], rel=TOLERANCE)
    assert found["losses"][-1] < found["losses"][0]


@SEVERAL
def test_ddp_has_the_gradients_of_one_process(parity: Parity, layout: str) -> None:
    assert_same(parity(layout)["ddp"]["gradients"], parity("1")["ddp"]["gradients"])


@SEVERAL
def test_full_graph_step_has_the_weights_of_one_process(parity: Parity, layout: str) -> None:
    assert_same(parity(layout)["full_graph"]["weights"], parity("1")["full_graph"]["weights"])


@SEVERAL
@pytest.mark.parametrize("device", ["loop", "plain_loop"])
def test_loop_has_the_gradients_and_losses_of_one_process(
    parity: Parity, layout: str, device: str
) -> None:
    """With accumulation, clipping, weight decay and warm-up; over torch_xla and plain torch."""
    found, alone = parity(layout)[device], parity("1")[device]
    assert_same(found["gradients"], alone["gradients"])
    assert found["losses"] == pytest.approx(alone["losses"], rel=TOLERANCE)
    assert found["train_loss"] == pytest.approx(alone["train_loss"], rel=TOLERANCE)


def test_both_devices_train_alike(parity: Parity) -> None:
    found, expected = parity("1")["loop"], parity("1")["plain_loop"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["evaluation"] == pytest.approx(expected["evaluation"], rel=1e-4)


@SEVERAL
def test_ranks_seeded_differently_start_from_rank_0s_weights(parity: Parity, layout: str) -> None:
    assert parity(layout)["loop"]["initial_weights_equal"]


@pytest.mark.parametrize("layout", ["1", "2", "4", "2x2"])
def test_padding_of_the_last_evaluation_batch_does_not_count(parity: Parity, layout: str) -> None:
    """37 rows in batches of 4: 3, 3 or 11 rows of padding."""
    loop = parity(layout)["loop"]
    assert loop["evaluation"]["accuracy"] == pytest.approx(loop["accuracy_by_hand"], abs=1e-6)
    alone = parity("1")["loop"]["evaluation"]
    assert loop["evaluation"]["loss"] == pytest.approx(alone["loss"], rel=1e-5)
