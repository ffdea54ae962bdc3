"""Weak, fading error memories; eight bits in blocks and between two ends; quantised changes of models."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.compression.base import Compressor
from laconic.compression.dithering import range_deviation
from laconic.compression.eight_bits import BlockwiseEightBits, CastInt8, dynamic_code
from laconic.runtime.meeting import Meeting
from tests.compression.table import compressor, meet, spec_of, tensor
from tests.sync import digits

MEET = Meeting(0, 1, 0, "x")


@pytest.mark.long
@given(st.integers(1, 300), st.integers(0, 500))
@settings(max_examples=30, deadline=None)
@pytest.mark.technique("ecq_sgd", check=1)
def test_without_compensation_it_is_the_quantiser(numel: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    plain, made = compressor("qsgd(levels=4)"), compressor("qsgd(levels=4)+compensation(alpha=0)")
    state = made.init(spec_of(torch.zeros(numel)))
    for step in range(5):
        x = torch.randn(numel, generator=draw)
        (alone,) = meet(plain, [x], step=step)
        (outcome,) = meet(made, [x], [state], step)
        state = outcome.state
        assert torch.equal(outcome.result, alone.result)


@pytest.mark.long
@given(st.integers(1, 300), st.integers(0, 500))
@settings(max_examples=30, deadline=None)
@pytest.mark.technique("ecq_sgd", check=1)
def test_with_both_at_one_nothing_is_lost(numel: int, seed: int) -> None:
    draw, made = torch.Generator().manual_seed(seed), compressor("qsgd(levels=31)+compensation(1, 1)")
    state = made.init(spec_of(torch.zeros(numel)))
    sent, came = torch.zeros(2, numel)
    for step in range(10):
        x = torch.randn(numel, generator=draw)
        (outcome,) = meet(made, [x], [state], step)
        state, sent, came = outcome.state, sent + outcome.result, came + x
    torch.testing.assert_close(sent + state["errors"], came, atol=1e-3, rtol=1e-3)


def tail_error(made: Compressor, seed: int, steps: int = 600, workers: int = 4) -> float:
    """A noisy quadratic of 256 dimensions: the mean error of the last third."""
    draw, slopes = torch.Generator().manual_seed(seed), torch.linspace(0.2, 1, 256)
    x, found = torch.zeros(256), []
    states = [made.init(spec_of(x)) for _ in range(workers)]
    for step in range(steps):
        outcomes = meet(made, [slopes * x + 0.5 * torch.randn(256, generator=draw) for _ in states], states, step)
        states = [outcome.state for outcome in outcomes]
        x = x - 0.05 * outcomes[0].result
        if not x.isfinite().all() or x.abs().max() > 1e6:
            return math.inf
        found.append(float((slopes * x * x).sum()))
    return sum(found[2 * steps // 3 :]) / (steps - 2 * steps // 3)


@pytest.mark.long
@pytest.mark.technique("ecq_sgd", check=2)
def test_a_weak_memory_helps_where_a_full_one_diverges() -> None:
    """Four levels of the whole vector's norm: a variance above 1."""
    quantiser = "qsgd(levels=4, bucket=256)"
    plain, weak = (
        sum(tail_error(compressor(t), s) for s in range(2)) for t in (quantiser, f"{quantiser}+compensation")
    )
    assert weak < 0.9 * plain
    assert tail_error(compressor(f"{quantiser}+compensation(1, 1)"), 0) > 100 * plain


# ------------------------------------------------------------------------------------------------ eight bits


@pytest.mark.long
@given(st.integers(1, 10_000), st.integers(1, 5000), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
@pytest.mark.technique("blockwise_8bit", check=1)
def test_a_byte_a_value_on_the_blocks_table(numel: int, block: int, seed: int) -> None:
    made, x = BlockwiseEightBits(block=block), torch.randn(numel, generator=torch.Generator().manual_seed(seed)) ** 3
    payload = made.encode(x, MEET)
    assert len(payload) == numel + 4 * -(-numel // block)
    sent = made.decode(payload, x.shape, MEET)
    for one, messages in zip(x.split(block), sent.split(block), strict=True):
        points = dynamic_code() * one.abs().max()
        assert bool(torch.isin(messages, points).all())
        nearest = (one[:, None] - points).abs().amin(1)
        torch.testing.assert_close((messages - one).abs(), nearest, atol=1e-6, rtol=1e-4)


@pytest.mark.technique("blockwise_8bit", check=2)
def test_an_outlier_spoils_only_its_own_block() -> None:
    made, x = BlockwiseEightBits(block=512), torch.randn(4096, generator=torch.Generator().manual_seed(1))
    spoilt = x.clone()
    spoilt[1000] = 1000
    before, after = (made.decode(made.encode(v, MEET), v.shape, MEET) for v in (x, spoilt))
    inside = torch.arange(4096) // 512 == 1000 // 512
    assert torch.equal(before[~inside], after[~inside])
    others = inside & (torch.arange(4096) != 1000)
    assert (after - spoilt)[others].abs().mean() > 3 * (before - x)[others].abs().mean()


@pytest.mark.technique("blockwise_8bit", check=3)
def test_ten_times_closer_than_one_scale_a_tensor() -> None:
    x = torch.randn(1_000_000, generator=torch.Generator().manual_seed(2))
    x[12345] = 100
    errors = [
        (made.decode(made.encode(x, MEET), x.shape, MEET) - x).abs().mean()
        for made in (BlockwiseEightBits(), CastInt8())
    ]
    assert errors[0] <= errors[1] / 10


@pytest.mark.long
@pytest.mark.technique("banner_8bit", check=1)
def test_affine_codes_are_right_in_the_mean() -> None:
    made, x = compressor("banner_8bit"), tensor("heavy", (9, 11))
    assert len(made.encode(x, MEET)) == x.numel() + 8  # type: ignore[attr-defined]
    draws = torch.stack([meet(made, [x], step=step)[0].result for step in range(3000)]).double()
    off, deviation = (draws.mean(0) - x).abs(), draws.std(0) / math.sqrt(len(draws))
    assert bool((off <= 4 * deviation + 1e-5 * x.abs().max()).all())


@pytest.mark.technique("banner_8bit", check=2)
def test_a_range_is_a_steady_deviation() -> None:
    draw = torch.Generator().manual_seed(3)
    found = [
        float(range_deviation(s * torch.randn(1024, generator=draw)) / s) for s in (0.1, 1.0, 30.0) for _ in range(20)
    ]
    assert 1.5 < sum(found) / len(found) < 2


# ------------------------------------------------------------------------------------------------ changes of models


@pytest.mark.long
@pytest.mark.technique("pqasgd", check=1)
def test_without_quantisation_it_is_local_sgd_and_with_period_one_bsp() -> None:
    sgd = digits.sgd(0.1)
    one, bsp = (digits.trained(text, 12, 8, sgd).parameters for text in ("local_sgd(1) / none", "bsp"))
    assert torch.equal(one, bsp)
    whole = digits.trained("local_sgd(4) / qsgd(levels=127, bucket=1)", 12, 8, sgd).parameters
    local = digits.trained("local_sgd(4)", 12, 8, sgd).parameters
    torch.testing.assert_close(whole, local, atol=1e-5, rtol=1e-4)


@pytest.mark.long
@pytest.mark.technique("pqasgd", check=2)
def test_bytes_are_those_of_the_meetings() -> None:
    """Three meetings in 24 steps; each worker gathers from three others what one sends."""
    sizes = (2048, 32, 320, 10)
    each = sum(-(-2 * n // 8) + 4 * -(-n // 512) for n in sizes)
    out = digits.trained("pqasgd", 24, 8, digits.sgd(0.1))
    assert out.sent_bytes == 3 * 3 * each


@pytest.mark.parametrize("inner", ["qsgd(levels=4)", "topk(0.2)"])
def test_old_errors_are_added_weakly_and_fade(inner: str) -> None:
    """Two workers, by the formulas: u = g + αh is compressed to each one's own q, and h becomes βh + g - q."""
    made, plain = compressor(f"{inner}+compensation(0.3, 0.8)"), compressor(inner)
    states = [made.init(spec_of(torch.zeros(30))) for _ in range(2)]
    memories = [torch.zeros(30), torch.zeros(30)]
    for step in range(4):
        gradients = [tensor("normal", (30,), seed=10 * step + rank) for rank in range(2)]
        alone = meet(plain, [g + 0.3 * h for g, h in zip(gradients, memories, strict=True)], step=step)
        memories = [
            0.8 * h + g - (o.result if o.sent is None else o.sent)
            for g, h, o in zip(gradients, memories, alone, strict=True)
        ]
        outcomes = meet(made, gradients, states, step)
        states = [outcome.state for outcome in outcomes]
        for outcome, expected, h in zip(outcomes, alone, memories, strict=True):
            torch.testing.assert_close(outcome.result, expected.result)
            torch.testing.assert_close(outcome.state["errors"], h)
    assert not torch.allclose(memories[0], memories[1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_leaves_nothing_in_the_memory(bad: float) -> None:
    made = compressor("cast_bf16+compensation(0.3, 0.8)")
    x = torch.tensor([1.001, bad, -2.003])
    (outcome,) = meet(made, [x], [made.init(spec_of(x))])
    errors = outcome.state["errors"]
    assert not outcome.result[1].isfinite() and errors[1] == 0
    assert errors[0] != 0 and errors[2] != 0
