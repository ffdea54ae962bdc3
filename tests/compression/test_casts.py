"""Casts: half and brain floats, eight-bit whole numbers and floats of a block's largest magnitude."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laconic.compression.cast import CastBF16, CastFP16
from laconic.compression.codec import Codec
from laconic.compression.eight_bits import CastFP8, CastInt8
from laconic.runtime.meeting import Meeting
from tests.compression.table import compressor, meet, spec_of, tensor

MEETING = Meeting(0, 1, 0, "x")
TINY, HUGE = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max


def decoded(codec: Codec, x: Tensor, step: int = 0) -> Tensor:
    meeting = replace(MEETING, step=step)
    return codec.decode(codec.encode(x, meeting), x.shape, meeting)


def all_exponents(seed: int = 0) -> Tensor:
    """Normal numbers of both signs over float32's whole range: random mantissas, each exponent as often."""
    draw = torch.Generator().manual_seed(seed)
    pattern = torch.randint(0, 1 << 23, (254, 64), generator=draw, dtype=torch.int64)
    pattern[:, 0], pattern[:, 1] = 0, (1 << 23) - 1
    pattern += torch.arange(1, 255)[:, None] << 23
    pattern -= torch.randint(0, 2, pattern.shape, generator=draw) << 31
    return pattern.to(torch.int32).view(torch.float32).reshape(-1)


# ---------------------------------------------------------------------------------------------- cast_fp16


@pytest.mark.technique("cast_fp16", check=1)
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_half_precision_is_half_the_bytes_and_near_the_mean(workers: int) -> None:
    """Of values of one sign in the normal range, over ten powers of two."""
    exponents = torch.rand(workers, 500, generator=torch.Generator().manual_seed(workers)) * 10 - 5
    inputs = list(torch.exp2(exponents))
    messages: list[list[tuple[str, Tensor]]] = []
    outcomes = meet(CastFP16(), inputs, payloads=messages)
    assert all(sum(x.nbytes for _, x in sent) == inputs[0].nbytes / 2 for sent in messages)
    mean = torch.stack(inputs).double().mean(dim=0)
    assert float(((outcomes[0].result.double() - mean) / mean).abs().max()) <= workers * 2**-11


@pytest.mark.technique("cast_fp16", check=2)
def test_divided_first_large_values_do_not_overflow() -> None:
    inputs = [torch.full((16,), 6e4) for _ in range(8)]
    assert all(bool(outcome.result.isfinite().all()) for outcome in meet(CastFP16(), inputs))
    undivided = inputs[0].half()
    for x in inputs[1:]:
        undivided += x.half()
    assert bool(undivided.isinf().all())


# ---------------------------------------------------------------------------------------------- cast_bf16


@pytest.mark.technique("cast_bf16", check=1)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_round_trip_loses_at_most_the_last_of_eight_bits(rounding: str) -> None:
    """Over the whole normal range, up to the format's own largest number, behind which the nearest is infinity. Rounded
    at random, either neighbour is: twice as far at most."""
    x = all_exponents()
    x = x[x.abs() <= torch.finfo(torch.bfloat16).max]
    assert float(x.abs().min()) == TINY and float(x.abs().max()) > 0.99 * HUGE
    found = decoded(CastBF16(rounding=rounding), x)
    error = ((found.double() - x.double()) / x.double()).abs().max()
    assert float(error) <= (2**-8 if rounding == "nearest" else 2**-7)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_what_is_not_finite_stays_so(rounding: str) -> None:
    found = decoded(CastBF16(rounding=rounding), torch.tensor([math.inf, -math.inf, math.nan]))
    assert found[0] == math.inf and found[1] == -math.inf and bool(found[2].isnan())


@pytest.mark.technique("cast_bf16", check=1)
@pytest.mark.parametrize("x", [1.001, -math.pi, 1e-30, 2.9e38, 1.0, TINY * 1.3])
def test_rounded_at_random_the_mean_is_right(x: float) -> None:
    found = decoded(CastBF16(rounding="stochastic"), torch.full((100_000,), x)).double()
    x = float(torch.tensor(x))
    assert len(found.unique()) == (1 if x == 1 else 2)
    assert abs(float(found.mean()) - x) <= 4 * float(found.std()) / math.sqrt(len(found))


@pytest.mark.long
@pytest.mark.technique("cast_bf16", check=2)
def test_small_addends_are_lost_in_bf16_and_kept_in_float32() -> None:
    """1 and 63 times 2⁻⁹, after the division among 64 workers."""
    inputs = [torch.full((8,), 64.0 * (1.0 if rank == 0 else 2.0**-9)) for rank in range(64)]
    assert meet(CastBF16(), inputs)[0].result.tolist() == [1.0] * 8
    wide, codec = torch.zeros(8), CastBF16()
    for x in inputs:
        codec.add(wide, codec.encode(x / 64, MEETING), MEETING)
    exact = 1 + 63 * 2.0**-9
    assert wide.tolist() == [exact] * 8 and round(exact, 3) == 1.123
    two_hops = meet(compressor("bf16+two_hop"), inputs)[0].result
    assert two_hops.tolist() == [float(torch.tensor(exact).bfloat16())] * 8 == [1.125] * 8


# ---------------------------------------------------------------------------------------------- cast_int8

BLOCKS = st.sampled_from([0, 1, 7, 64, 1000])
KINDS = st.sampled_from(["normal", "heavy", "sparse", "constant", "zero"])


def largest(x: Tensor, block: int) -> Tensor:
    """Of each value's block, in float64."""
    found = x.double().abs()
    block = block or x.numel()
    return torch.cat([part.max().expand(len(part)) for part in found.split(block)])


@pytest.mark.long
@pytest.mark.technique("cast_int8", check=1)
@given(kind=KINDS, n=st.integers(1, 700), block=BLOCKS, exponent=st.integers(-110, 110), seed=st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_whole_numbers_are_half_a_step_off_at_most(kind: str, n: int, block: int, exponent: int, seed: int) -> None:
    """Whatever the scale; what float32 itself loses is let pass."""
    x = tensor(kind, (n,), seed) * 2.0**exponent
    made = CastInt8(block=block)
    step = largest(x, block) / 127
    error = (decoded(made, x).double() - x.double()).abs()
    assert bool((error <= step / 2 * (1 + 1e-4)).all())
    expected = n + 4 * math.ceil(n / (block or n))
    assert made.encode(x, MEETING).nbytes == made.payload_bytes(spec_of(x), 1) == expected


@pytest.mark.technique("cast_int8", check=2)
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("block", [0, 64])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_codes_of_one_scale_add_up_to_what_all_sent(workers: int, block: int, rounding: str) -> None:
    """With a step that is a power of two nothing is rounded but values to codes, so that sums agree to the bit."""
    inputs = [tensor("normal", seed=rank).clamp(-3, 3) for rank in range(workers)]
    inputs[-1].view(-1)[:: block or 480] = -127 * 2.0**-5
    messages: list[list[tuple[str, Tensor]]] = []
    outcomes = meet(CastInt8(block=block, rounding=rounding, shared=True), inputs, payloads=messages)
    sent = torch.stack([outcome.sent for outcome in outcomes if outcome.sent is not None]).double()
    codes = torch.stack([sent[1][1] for sent in messages])
    assert codes.dtype == torch.int32 and int(codes.abs().max()) <= 127
    assert torch.equal(codes.sum(dim=0).view(24, 20) * 2.0**-5, sent.sum(dim=0))
    for outcome in outcomes:
        assert torch.equal(outcome.result.double() * workers, sent.sum(dim=0))


def test_codes_of_one_scale_are_the_nearest_or_drawn_with_the_right_mean() -> None:
    """2.3 steps of the other worker's largest magnitude: two steps, or by a coin two or three."""
    inputs = [torch.full((4001,), 2.3), torch.zeros(4001)]
    inputs[1][0] = -127.0
    nearest, random = (meet(CastInt8(rounding=how, shared=True), inputs)[0].result for how in ("nearest", "stochastic"))
    assert (2 * nearest[1:]).unique().tolist() == [2.0]
    assert (2 * random[1:]).unique().tolist() == [2.0, 3.0]
    assert abs(float(2 * random[1:].mean()) - 2.3) <= 4 * math.sqrt(0.3 * 0.7 / 4000)


@pytest.mark.parametrize("workers", [3, 5])
def test_codes_of_any_scale_add_up_to_the_last_place(workers: int) -> None:
    inputs = [tensor("heavy", seed=rank) for rank in range(workers)]
    outcomes = meet(CastInt8(block=50, shared=True), inputs)
    sent = torch.stack([outcome.sent for outcome in outcomes if outcome.sent is not None]).double()
    torch.testing.assert_close(outcomes[0].result.double(), sent.mean(dim=0), rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------------------------------------- cast_fp8

FORMATS = {"e4m3": (448.0, 2.0**-6, 2.0**-4), "e5m2": (57344.0, 2.0**-14, 2.0**-3)}
"""The largest number, the least normal one, and half the distance of neighbours relative to them."""


@pytest.mark.long
@pytest.mark.technique("cast_fp8", check=1)
@given(
    format=st.sampled_from(sorted(FORMATS)),
    kind=KINDS,
    n=st.integers(1, 700),
    block=BLOCKS,
    exponent=st.integers(-126, 110),
    seed=st.integers(0, 99),
)
@settings(max_examples=200, deadline=None)
def test_eight_bit_floats_are_near(format: str, kind: str, n: int, block: int, exponent: int, seed: int) -> None:
    x = tensor(kind, (n,), seed) * 2.0**exponent
    found = decoded(CastFP8(block=block, format=format), x)
    assert bool(found.isfinite().all())
    most, least, near = FORMATS[format]
    normal = (x.double().abs() * most >= least * largest(x, block)) & (x.abs() >= TINY)
    error = (found.double() - x.double()).abs()
    assert bool((error <= near * x.double().abs() * (1 + 1e-4))[normal].all())
    step = 2 * near * least / most * largest(x, block)
    assert bool((error <= step / 2 * (1 + 1e-4) + TINY)[~normal].all()), "below, neighbours are as far as there"


@pytest.mark.technique("cast_fp8", check=1)
@pytest.mark.parametrize("format", sorted(FORMATS))
def test_no_finite_input_overflows_or_divides_by_zero(format: str) -> None:
    for scale in (HUGE, 1.0, 1e-30, 1e-36, TINY, 1e-42, 0.0):
        x = torch.tensor([0.0, 1.0, -1.0, 0.5, 1e-3, -1e-6, 0.0]) * scale
        assert bool(decoded(CastFP8(format=format), x).isfinite().all()), scale


@pytest.mark.technique("cast_fp8", check=2)
@given(format=st.sampled_from(sorted(FORMATS)), n=st.integers(1, 2000), block=BLOCKS)
@settings(max_examples=60, deadline=None)
def test_a_byte_a_value_and_a_scale_a_block(format: str, n: int, block: int) -> None:
    x, made = tensor("normal", (n,)), CastFP8(block=block, format=format)
    expected = n + 4 * math.ceil(n / (block or n))
    assert made.encode(x, MEETING).nbytes == made.payload_bytes(spec_of(x), 1) == expected
