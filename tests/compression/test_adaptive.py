"""Compressors that decide in every step: by a budget, by entropy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.compression.ac_sgd import ACSGD, _Scaled, best, variance
from laconic.compression.base import Compressor
from laconic.compression.egc import EGC, entropy
from laconic.compression.stochastic_levels import QSGD
from laconic.runtime.meeting import Meeting
from tests.compression.table import meet, spec_of
from tests.sync import digits
from tests.sync.test_large_batch import Standardised

WORKERS, DIMENSION, STEPS = 2, 200, 200


def descend(made: Compressor, seed: int, steps: int = STEPS) -> tuple[float, list[list[int]]]:
    """A noisy quadratic: the final error, and each worker's bits in every step."""
    draw, slopes = torch.Generator().manual_seed(seed), torch.linspace(0.5, 2, DIMENSION)
    x = 3 * torch.randn(DIMENSION, generator=draw)
    states = [made.init(spec_of(x)) for _ in range(WORKERS)]
    bits = []
    for step in range(steps):
        inputs = [slopes * x + 0.1 * torch.randn(DIMENSION, generator=draw) for _ in range(WORKERS)]
        messages: list[list[tuple[str, torch.Tensor]]] = []
        outcomes = meet(made, inputs, states, step, seed=seed, payloads=messages)
        bits.append([8 * sum(part.nbytes for _, part in decoded) for decoded in messages])
        states = [outcome.state for outcome in outcomes]
        x = x - 0.04 * outcomes[0].result
    return float((slopes * x * x).sum() / 2), bits


@pytest.mark.long
@pytest.mark.parametrize(("each", "discount"), [(0.8, 0.99), (1.0, 0.995), (2.5, 1.0), (6.0, 0.98)])
@pytest.mark.technique("ac_sgd", check=1)
@pytest.mark.technique("ac_sgd", check=3)
def test_a_budget_is_spent_and_not_exceeded(each: float, discount: float) -> None:
    """By every worker alike, in every step; and again in the next horizon."""
    _, bits = descend(ACSGD(bits=each, horizon=60, discount=discount), seed=1, steps=120)
    assert all(len(set(step)) == 1 for step in bits)
    for first in (0, 60):
        spent = sum(step[0] for step in bits[first : first + 60])
        assert 0.95 <= spent / (each * DIMENSION * 60) <= 1


@pytest.mark.technique("ac_sgd", check=2)
@pytest.mark.long
def test_no_constant_choice_of_the_same_bits_ends_nearer() -> None:
    """Constants need not agree on a norm, and may use those bits."""
    seeds = range(3)
    ours = sum(descend(ACSGD(bits=1.0, horizon=STEPS, discount=0.99), seed)[0] for seed in seeds)
    constants = [_Scaled((DIMENSION - 32) // b, b) for b in range(2, 9)]
    assert ours <= min(sum(descend(made, seed)[0] for seed in seeds) for made in constants)


@pytest.mark.long
def test_many_draws_are_right_in_the_mean() -> None:
    made, x = ACSGD(bits=1.5), torch.randn(60, generator=torch.Generator().manual_seed(0))
    decoded = torch.stack([meet(made, [x], step=step)[0].result for step in range(1500)])
    assert bool(((decoded.mean(0) - x).abs() <= 4.5 * decoded.std(0) / math.sqrt(len(decoded))).all())


# ------------------------------------------------------------------------------------------------ entropy


@pytest.mark.long
@given(st.integers(2, 500), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
@pytest.mark.technique("egc", check=1)
def test_what_is_sent_and_the_memory_are_what_came_in(numel: int, seed: int) -> None:
    """Without momentum; over ten steps of two workers."""
    made, draw = EGC(ratio=0.1, floor=0.01), torch.Generator().manual_seed(seed)
    states = [made.init(spec_of(torch.zeros(numel))) for _ in range(2)]
    applied, came = torch.zeros(2, numel)
    for step in range(10):
        inputs = [torch.randn(numel, generator=draw) for _ in range(2)]
        outcomes = meet(made, inputs, states, step)
        states = [outcome.state for outcome in outcomes]
        applied, came = applied + outcomes[0].result, came + torch.stack(inputs).mean(0)
    left = torch.stack([state["sum"] for state in states]).mean(0)
    torch.testing.assert_close(applied + left, came, atol=1e-4, rtol=1e-4)


@pytest.mark.technique("egc", check=1)
def test_a_constant_gradient_keeps_the_floor() -> None:
    made, flat = EGC(ratio=0.1, floor=0.02), torch.full((1000,), 0.3)
    assert entropy(flat, 64) == 0
    assert len(made.choose(flat, Meeting(0, 1, 0, "x"))) == 20


@pytest.mark.long
@given(st.integers(0, 1000), st.floats(0.05, 5), st.floats(0.05, 5))
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("egc", check=2)
def test_more_entropy_sends_no_less(seed: int, one: float, other: float) -> None:
    """Layers of the same size, of values with tails more or less heavy."""
    draw = torch.Generator().manual_seed(seed)
    flats = [torch.randn(3000, generator=draw).sign() * torch.rand(3000, generator=draw) ** p for p in (one, other)]
    made = EGC(ratio=0.2, floor=0.001)
    low, high = sorted(flats, key=lambda flat: entropy(flat, made.bins))
    counts = [len(made.choose(flat, Meeting(0, 1, 0, "x"))) for flat in (low, high)]
    assert counts[0] <= counts[1]
    assert 0 < entropy(high, made.bins) <= math.log2(made.bins)


@pytest.mark.long
@pytest.mark.technique("egc", check=3)
def test_a_fiftieth_of_the_bytes_trains_as_well() -> None:
    """Two seeds; DGC's momentum is the optimizer's, which it takes over."""

    def mean(strategy: str) -> tuple[float, float]:
        make = digits.sgd(0.05, momentum=0.9)
        runs = [digits.trained(strategy, 150, 16, make, seed=seed, build=Standardised) for seed in range(2)]
        return sum(run.accuracy for run in runs) / 2, max(run.sent_bytes for run in runs)

    (bsp, dense), (low, sent) = mean("bsp"), mean("egc(ratio=0.004)")
    assert bsp > 95
    assert low >= bsp - 1
    assert dense >= 50 * sent


# ------------------------------------------------------------------------------------------------ by hand


def test_a_step_may_spend_what_its_weight_and_the_rest_of_the_budget_allow() -> None:
    """A bit a coordinate in four steps: 800 for 200 coordinates, of which 500 are spent or none."""
    even = ACSGD(bits=1.0, horizon=4, discount=1.0)
    assert even.allowance(200, made=0, spent=0, now=3.0, seen=3.0) == 200, "equal norms share equally"
    assert even.allowance(200, made=1, spent=500, now=3.0, seen=3.0) == 100, "a third of what is left"
    assert even.allowance(200, made=2, spent=500, now=2.0, seen=1.0) == 200, "twice the norm, twice the share"
    assert even.allowance(200, made=3, spent=500, now=1.0, seen=9.0) == 300, "the last step takes the rest"
    assert even.allowance(200, made=2, spent=500, now=0.0, seen=9.0) == 72, "and no step less than one byte of values"
    growing = ACSGD(bits=1.0, horizon=2, discount=0.25)
    assert growing.allowance(300, made=0, spent=0, now=1.0, seen=1.0) == pytest.approx(600 / 3), (
        "later steps weigh more"
    )


def test_what_is_spent_is_counted_until_the_horizon_ends() -> None:
    made, x = ACSGD(bits=2.0, horizon=3, discount=1.0), torch.randn(64, generator=torch.Generator().manual_seed(2))
    states, totals = [made.init(spec_of(x)) for _ in range(2)], []
    for step in range(6):
        messages: list[list[tuple[str, torch.Tensor]]] = []
        outcomes = meet(made, [x, x], states, step, payloads=messages)
        states = [outcome.state for outcome in outcomes]
        sent = 8 * sum(part.nbytes for _, part in messages[0])
        totals.append(sent + (totals[-1] if step % 3 else 0))
        assert float(states[0]["spent"]) == totals[-1] <= 2 * 64 * 3
    assert totals[:3] == totals[3:] and totals[2] > 0.95 * 2 * 64 * 3


@pytest.mark.parametrize(
    ("n", "k", "b", "expected"), [(100, 16, 4, 7.290816), (100, 25, 3, 9.666667), (60, 60, 2, 7.745967)]
)
def test_the_variance_is_that_of_a_drawing_and_a_rounding(n: int, k: int, b: int, expected: float) -> None:
    """(n/k)(1 + ω) - 1, where ω is QSGD's for k values in one bucket: min(k/s², √k/s)."""
    omega = QSGD(levels=2 ** (b - 1) - 1, bucket=k).variance(spec_of(torch.zeros(k)))
    assert omega is not None
    assert variance(n, k, b) == pytest.approx(n / k * (1 + omega) - 1) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("b", range(2, 9))
def test_a_coordinate_takes_its_bits_and_is_one_of_its_levels(b: int) -> None:
    """On 2^(b-1) - 1 levels of the norm of the k values, times n/k; two workers draw the same places."""
    k, x = 24, torch.randn(2, 96, generator=torch.Generator().manual_seed(b))
    messages: list[list[tuple[str, torch.Tensor]]] = []
    outcomes = meet(_Scaled(k, b), list(x), payloads=messages)
    assert all(sum(part.nbytes for _, part in sent) == 3 * b + 4 for sent in messages)
    assert outcomes[0].sent is not None and outcomes[1].sent is not None
    torch.testing.assert_close(outcomes[0].result, (outcomes[0].sent + outcomes[1].sent) / 2)
    for own, outcome in zip(x, outcomes, strict=True):
        assert outcome.sent is not None
        (norm,) = messages[0 if outcome is outcomes[0] else 1][-1][1][-4:].clone().view(torch.float32)
        levels = outcome.sent / 4 / norm * (2 ** (b - 1) - 1)
        torch.testing.assert_close(levels, levels.round(), atol=1e-3, rtol=0)
        chosen = outcome.sent != 0
        assert int(chosen.sum()) <= k and float(levels.abs().max()) <= 2 ** (b - 1) - 1
        assert bool((outcome.sent[chosen].sign() == own[chosen].sign()).all())


def test_the_share_grows_linearly_with_the_entropy() -> None:
    """From the floor at one value to the ratio at a flat histogram; half of 16 bins in equal parts are three bits of
    four."""
    made = EGC(ratio=0.1, floor=0.02, bins=16)
    assert made.kept(torch.zeros(100)) == 0.02
    assert made.kept(torch.arange(16.0).repeat(5)) == pytest.approx(0.1)
    assert made.kept(torch.tensor([0.0, 15.0]).repeat(40)) == pytest.approx(0.02 + 0.08 / 4)
    assert made.kept(torch.tensor([0.0, 1, 2, 3, 4, 5, 6, 15]).repeat(9)) == pytest.approx(0.02 + 0.08 * 3 / 4)
    assert EGC(ratio=0.01, floor=0.5).kept(torch.zeros(10)) == 0.01, "no floor is above the ratio"


@pytest.mark.parametrize("bits", [64.0, 66.0, 67.0, 80.0, 1000.0])
def test_what_is_chosen_fits_into_the_bits_or_is_one_coordinate(bits: float) -> None:
    k, b = best(50, bits)
    assert 1 <= k <= 50 and 2 <= b <= 8
    assert k == 1 or 64 + k * b <= bits
    if bits < 68:
        assert k == 1  # two bits or three are room for one


def test_values_whose_range_overflows_have_no_entropy() -> None:
    assert entropy(torch.tensor([-3e38, 0.0, 3e38]), 64) == 0
    assert entropy(torch.tensor([-1e36, 0.0, 1e36]), 64) == pytest.approx(math.log2(3))
