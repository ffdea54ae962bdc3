"""Integers of four bits: their steps, their bytes, and what becomes of blocks that are short, empty or not finite."""

from __future__ import annotations

import math

import pytest
import torch

from laconic.compression.four_bits import CastInt4
from laconic.runtime.meeting import Meeting
from tests.compression.table import spec_of

MEET = Meeting(0, 2, 0, "x")


def through(codec: CastInt4, x: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(x, MEET), x.shape, MEET)


@pytest.mark.parametrize("block", [2, 33, 128])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_value_is_further_off_than_half_a_step_of_its_block(block: int, seed: int) -> None:
    codec = CastInt4(block)
    for n in (1, 2, block - 1, block + 1, 1001):
        x = torch.randn(n, generator=torch.Generator().manual_seed(seed)) * torch.logspace(-6, 6, n)
        near, payload = through(codec, x), codec.encode(x, MEET)
        assert payload.numel() == codec.payload_bytes(spec_of(x), 2) == -(-n // 2) + 4 * -(-n // block)
        for part, exact in zip(near.split(block), x.split(block), strict=True):
            step = exact.abs().max() / 7
            assert (part - exact).abs().max() <= step / 2 * (1 + 1e-5)
            codes = part / step
            torch.testing.assert_close(codes, codes.round(), rtol=0, atol=1e-4)


def test_two_codes_in_twos_complement_share_a_byte_and_scales_follow() -> None:
    """Of two neighbours that are equally near, the even one is taken."""
    x = torch.tensor([7.0, -7.0, 2.5, -3.5, -1.0])
    payload = CastInt4(4).encode(x, MEET)
    assert payload[:3].tolist() == [0x97, 0xC2, 0x09]
    assert payload[3:].clone().view(torch.float32).tolist() == [7.0, 1.0]
    assert through(CastInt4(4), x).tolist() == [7.0, -7.0, 2.0, -4.0, -1.0]


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_spoils_its_own_block_alone(poison: float) -> None:
    x = torch.arange(-10.0, 11.0)
    x[8:16] = 0
    expected = through(CastInt4(8), x)
    assert not expected[8:16].any()
    x[2] = poison
    near = through(CastInt4(8), x)
    assert not near[:8].isfinite().any() and torch.equal(near[8:], expected[8:])


def test_whole_blocks_fill_whole_bytes() -> None:
    assert [CastInt4(block).unit for block in (2, 3, 4, 5, 128)] == [2, 6, 4, 10, 128]
