"""Fixed point: an unbiased grid in 16 bits, exact sums, and updates that rounding to the nearest would lose."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laconic import kernels
from laconic.compression.fixed_point import FixedPoint, paired, to_words, unpaired
from laconic.errors import StrategyError
from tests.compression.table import meet, spec_of, tensor


@pytest.mark.technique("gupta_fixed_point", check=1)
@pytest.mark.parametrize("fraction", [8, 14])
@pytest.mark.parametrize("share", [-1.0, -0.73201, -1e-4, 0.0, 0.2, 1.0])
def test_roundings_have_the_true_mean_and_are_on_the_grid(fraction: int, share: float) -> None:
    """A hundred thousand of a value in the range [-2^(IL-1), 2^(IL-1) - 2^-FL]."""
    step, reach = 2.0**-fraction, 2.0 ** (15 - fraction)
    x = torch.full((100_000,), min(share * reach, reach - step))
    found = meet(FixedPoint(fraction=fraction), [x])[0].result.double()
    assert torch.equal(found / step, (found / step).round())
    assert -reach <= float(found.min()) <= float(found.max()) <= reach - step
    exact = float(x[0])
    rest = exact / step - math.floor(exact / step)
    assert abs(float(found.mean()) - exact) <= 4 * step * math.sqrt(rest * (1 - rest) / len(x)) + 1e-12


@given(x=st.floats(-1e30, 1e30), fraction=st.integers(0, 15), workers=st.integers(1, 9), bits=st.sampled_from([16, 32]))
@settings(max_examples=50, deadline=None)
@pytest.mark.technique("gupta_fixed_point", check=1)
def test_every_output_is_on_the_grid_and_in_range(x: float, fraction: int, workers: int, bits: int) -> None:
    """Also where head-room makes the grid coarser; the neighbours of what is inside, the ends for what is beyond."""
    made = FixedPoint(fraction=fraction, sum_bits=bits)
    outcomes = meet(made, [torch.tensor([x, -x, x / 3])] * workers)
    step, reach = 2.0 ** (made.room(workers) - fraction), 2.0 ** (15 - fraction)
    for outcome in outcomes:
        assert outcome.sent is not None
        sent = outcome.sent.double()
        assert torch.equal(sent / step, (sent / step).round())
        inside = torch.tensor([x, -x, x / 3]).double().clamp(-reach, reach - step)
        assert bool(((sent - inside).abs() < step).all())


@pytest.mark.long
@given(
    workers=st.integers(1, 20),
    n=st.integers(1, 60),
    size=st.sampled_from([1e-4, 1e-2, 1.0, 100.0]),
    bits=st.sampled_from([16, 32]),
    rounding=st.sampled_from(["stochastic", "nearest"]),
)
@settings(max_examples=40, deadline=None)
@pytest.mark.technique("gupta_fixed_point", check=2)
def test_the_sum_on_the_wire_is_the_sum_of_what_all_sent(
    workers: int, n: int, size: float, bits: int, rounding: str
) -> None:
    """Integers of 32 bits alone are handed over; their sum, in any order, is everybody's decoded tensors' to the bit,
    whether a sum has 32 bits or two share them."""
    made = FixedPoint(sum_bits=bits, rounding=rounding)
    messages: list[list[tuple[str, Tensor]]] = []
    outcomes = meet(made, [size * tensor("heavy", (n,), rank) for rank in range(workers)], payloads=messages)
    step = 2.0 ** (made.room(workers) - 14)
    sent = torch.stack([outcome.sent for outcome in outcomes if outcome.sent is not None]).double() / step
    words = [whole for ((how, whole),) in messages if how == "Reduce" and whole.dtype == torch.int32]
    assert len(words) == workers
    total = words[-1].clone()
    for word in words[-2::-1]:  # backwards, in 32 bits
        total += word
    found = unpaired(total, workers)[:n] if bits == 16 else total
    assert torch.equal(found.double(), sent.sum(dim=0))
    mean = sent.sum(dim=0) * step / workers
    assert all(torch.equal(o.result.double(), mean.float().double()) for o in outcomes)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, 8, 100, 2**15])
def test_sums_of_the_largest_words_fit_beside_each_other(workers: int) -> None:
    room = (workers - 1).bit_length()
    half = 2 ** (15 - room)
    for pair in ([-half, -half], [half - 1, half - 1], [-half, half - 1], [half - 1, -half]):
        one = paired(torch.tensor(pair, dtype=torch.int32), workers).long()
        total = workers * one
        assert -(2**31) <= int(total) < 2**31
        assert unpaired(total.to(torch.int32), workers).tolist() == [workers * w for w in pair]


def test_more_workers_than_there_is_room_for_are_refused() -> None:
    with pytest.raises(StrategyError, match="do not fit"):
        next(FixedPoint().exchange(torch.ones(3), {}, _TooManyWorkers()))  # type: ignore[arg-type]


class _TooManyWorkers:
    """A meeting of more workers than sums have bits for."""

    size = 2**15 + 1


@pytest.mark.long
@pytest.mark.technique("gupta_fixed_point", check=3)
@pytest.mark.parametrize("fraction", [12, 14])
def test_small_updates_add_up_at_random_and_vanish_in_the_nearest(fraction: int) -> None:
    """A thousand updates of a tenth of a step, to weights that are held in the format; the mean of many weights."""
    step, n = 2.0**-fraction, 1000
    for rounding in ("stochastic", "nearest"):
        weights = torch.zeros(n)
        for k in range(1000):
            draws = kernels.uniform(k, 0, n) if rounding == "stochastic" else None
            weights = to_words(weights + 0.1 * step, step, 16, draws) * step
        moved = float(weights.double().mean()) / step
        if rounding == "nearest":
            assert not weights.any()
        else:
            assert abs(moved - 100) <= 4 * math.sqrt(1000 * 0.09 / n)


@pytest.mark.long
@pytest.mark.technique("gupta_fixed_point", check=3)
def test_so_do_messages() -> None:
    step, size = 2.0**-14, 1000
    for rounding, expected in (("stochastic", 100), ("nearest", 0)):
        x, total = torch.full((size,), 0.1 * step), torch.zeros(size, dtype=torch.float64)
        for k in range(1000):
            total += meet(FixedPoint(rounding=rounding), [x], step=k)[0].result
        assert float(total.mean()) / step == pytest.approx(expected, abs=4 * math.sqrt(1000 * 0.09 / size))


def test_what_is_beyond_the_range_is_cut_and_no_number_is_zero() -> None:
    x = torch.tensor([math.inf, -math.inf, 7.0, -7.0, math.nan])
    expected = torch.tensor([2 - 2**-14, -2.0, 2 - 2**-14, -2.0, 0.0])
    assert torch.equal(meet(FixedPoint(), [x])[0].result, expected)


@given(n=st.integers(1, 500), workers=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_a_word_takes_two_bytes(n: int, workers: int) -> None:
    inputs = [tensor("normal", (n,), rank) for rank in range(workers)]
    for bits, expected in ((16, 4 * math.ceil(n / 2)), (32, 4 * n)):
        made = FixedPoint(sum_bits=bits)
        messages: list[list[tuple[str, Tensor]]] = []
        meet(made, inputs, payloads=messages)
        assert (
            {sent.nbytes for ((_, sent),) in messages}
            == {made.payload_bytes(spec_of(inputs[0]), workers)}
            == {expected}
        )
