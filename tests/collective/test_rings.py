"""Rings: exact sums, the least bytes, the successor's link alone, and the formula's time."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.collective.price import price
from laconic.collective.rings import ring
from laconic.network.network_tree import Network
from tests.collective.on_virtual_workers import assert_sums


@pytest.mark.technique("ring_allreduce", check=1)
@pytest.mark.parametrize(
    "size", [pytest.param(size, marks=() if size in (2, 3, 4, 5, 8, 11) else pytest.mark.long) for size in range(2, 17)]
)
def test_every_rank_ends_with_the_sum(size: int) -> None:
    assert_sums(ring(size))


@pytest.mark.technique("ring_allreduce", check=2)
@pytest.mark.parametrize("size", range(2, 17))
def test_each_rank_sends_the_least_that_is_possible_to_its_successor_alone(size: int) -> None:
    program = ring(size)
    sends = program.sends
    assert program.steps == 2 * (size - 1)
    assert (sends.destination == (sends.source + 1) % size).all()
    assert np.bincount(sends.source).tolist() == [2 * (size - 1)] * size
    np.testing.assert_allclose(program.sent_shares, 2 * (size - 1) / size)
    for step in range(program.steps):  # one chunk on each link in each step
        assert sorted(sends.source[sends.step == step].tolist()) == list(range(size))


@pytest.mark.parametrize("size", [2, 3, 4, 8, 33])
@pytest.mark.parametrize(("latency", "rate", "adding"), [(1e-3, 8e6, 0.0), (5e-6, 1e10, 2e-11), (0.0, 1e9, 1e-9)])
def test_the_price_is_the_formulas(size: int, latency: float, rate: float, adding: float) -> None:
    """T = 2(p-1) α + 2(p-1)/p S β + (p-1)/p S γ."""
    for nbytes in (1.0, 1e6, 1e9):
        found = price(ring(size), nbytes, Network.flat(size, rate, latency), add_seconds_per_byte=adding)
        share = (size - 1) / size * nbytes
        assert found.seconds == pytest.approx(
            2 * (size - 1) * latency + 2 * share * 8 / rate + share * adding, rel=1e-9
        )
