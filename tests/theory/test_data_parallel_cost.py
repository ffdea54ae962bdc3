"""The survey's worked figures of synchronising a model of 100 billion parameters."""

from __future__ import annotations

import pytest

from laconic.errors import LaconicError
from laconic.theory.data_parallel_cost import data_parallel_cost

PARAMETERS, GPUS, SLOW, FAST = 100e9, 100, 1e9 / 8, 900e9


@pytest.mark.technique("llm_data_parallel_cost", check=1)
@pytest.mark.evidence("llm_data_parallel_cost")
def test_the_two_links_of_the_survey() -> None:
    slow, fast = (data_parallel_cost(PARAMETERS, GPUS, rate) for rate in (SLOW, FAST))
    assert slow.copy_bytes == 200e9 and slow.total_parameters == 10e12
    assert slow.copy_seconds == pytest.approx(1600)
    assert fast.copy_seconds == pytest.approx(0.222, abs=5e-4)
    for cost in (slow, fast):
        assert cost.ring_seconds == pytest.approx(1.98 * cost.copy_seconds)
        assert cost.ring_bytes == pytest.approx(1.98 * cost.copy_bytes)


@pytest.mark.technique("llm_data_parallel_cost", check=2)
@pytest.mark.parametrize("rate", [SLOW, FAST])
@pytest.mark.parametrize("period", [1, 2, 8, 64])
def test_eight_bits_halve_and_a_period_divides(rate: float, period: int) -> None:
    plain = data_parallel_cost(PARAMETERS, GPUS, rate)
    less = data_parallel_cost(PARAMETERS, GPUS, rate, bits=8, period=period)
    for name in ("copy_bytes", "copy_seconds", "ring_bytes", "ring_seconds"):
        assert getattr(less, name) == getattr(plain, name) / 2 / period
    assert less.total_parameters == plain.total_parameters / period


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(LaconicError, match="start at one"):
        data_parallel_cost(1e9, 0, SLOW)
