"""What coded gradients and weights of shards do to the loss of the reference language model."""

from __future__ import annotations

import pytest

from laconic.compression.eight_bits import CastInt8
from laconic.compression.four_bits import CastInt4
from tests.sharded.text import loss, sending_weights_as

pytestmark = pytest.mark.long
FOUR_BITS = sending_weights_as(CastInt4(block=128))
ONE_SCALE = sending_weights_as(CastInt8(block=0))


@pytest.mark.technique("sdp4bit", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_four_bits_both_ways_leave_the_loss_as_it_is(seed: int) -> None:
    """Within one per cent of plain sharding; weights themselves in four bits lose more than three."""
    plain = loss("zero", seed)
    ours = loss("sdp4bit", seed)
    print(f"plain {plain:.4f}, SDP4Bit {ours:.4f} ({ours / plain - 1:+.2%})")
    assert ours != plain and ours < 1.01 * plain
    directly = loss("int4(128)+hadamard(32)", seed, "int8(128)", FOUR_BITS)
    print(f"weights themselves in four bits {directly:.4f} ({directly / plain - 1:+.2%})")
    assert directly > 1.03 * plain


@pytest.mark.technique("zeropp_qwz", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_weights_of_eight_bits_leave_the_loss_as_it_is(seed: int) -> None:
    """Within one per cent of stage 3 after 500 steps; one scale for all of a worker's shard is printed beside it."""
    plain = loss("zero", seed)
    blocks = loss("zeropp_qwz", seed)
    print(f"stage 3 {plain:.4f}, blocks of 256 {blocks:.4f} ({blocks / plain - 1:+.2%})")
    assert blocks != plain and abs(blocks - plain) < 0.01 * plain
    single = loss("none", seed, "int8(128)", ONE_SCALE)
    print(f"one scale {single:.4f} ({single / plain - 1:+.2%})")
