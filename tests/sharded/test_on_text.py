"""What coded gradients and weights of shards do to the loss of the reference language model."""

from __future__ import annotations

import pytest

from laconic.compression.four_bits import CastInt4
from tests.sharded.text import loss, sending_weights_as


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_four_bits_both_ways_leave_the_loss_as_it_is(seed: int) -> None:
    """Within one per cent of plain sharding; weights themselves in four bits lose more than three."""
    plain, ours = loss("zero", seed), loss("sdp4bit", seed)
    print(f"seed {seed}: plain {plain:.4f}, SDP4Bit {ours:.4f} ({ours / plain - 1:+.2%})")
    assert ours != plain and ours < 1.01 * plain
    directly = loss("int4(128)+hadamard(32)", seed, "int8(128)", sending_weights_as(CastInt4(block=128)))
    print(f"seed {seed}: weights themselves in four bits {directly:.4f} ({directly / plain - 1:+.2%})")
    assert directly > 1.03 * plain
