"""SDP4Bit: differences of weights in four bits, and a transform before gradients are coded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import laconic
from laconic import kernels
from laconic.compression.hadamard import Transformed
from laconic.compression.raw import Raw
from laconic.real.connect import connect
from laconic.runtime.meeting import Meeting
from laconic.runtime.sharded.gather import ShardGather, WeightsTier
from tests.sharded.test_zeropp import drawn, run, sentence


@pytest.mark.technique("sdp4bit", check=1)
@pytest.mark.parametrize(("steps", "seed"), [(150, 0), pytest.param(1000, 1, marks=pytest.mark.long)])
def test_the_copy_stays_within_half_a_step_of_the_weights(steps: int, seed: int) -> None:
    """Weights wander as an optimizer moves them, ever more slowly."""
    n, block = 256, 128

    def body() -> tuple[float, list[float]]:
        worker: Any = connect()
        gather = ShardGather(WeightsTier(sentence("int4(128)+ef21"), worker.world, worker=worker))
        draws = torch.Generator().manual_seed(10 * seed + worker.rank)
        shard = torch.randn(n, generator=draws)
        worst, distances = 0.0, []
        known = None
        for step in range(steps):
            out = torch.empty(worker.size * n)
            run(gather.gather("weights", shard, out))
            mine = out.view(worker.size, -1)[worker.rank]
            if known is not None:
                half = (shard - known).view(-1, block).abs().amax(1, keepdim=True) / 14
                worst = max(worst, float(((shard - mine).view(-1, block).abs() / (half + 1e-6)).max()))
            distances.append(float((shard - mine).abs().max()))
            known = mine.clone()
            shard = shard + 1e-2 * torch.randn(n, generator=draws) / (1 + 10 * step / steps)
        return worst, distances

    for worst, distances in laconic.simulate(body, 2).results:
        assert 0.5 < worst <= 1
        assert max(distances[-steps // 10 :]) < max(distances[1 : steps // 10])


@pytest.mark.technique("sdp4bit", check=2)
@pytest.mark.parametrize("n", [32, 320, 1000])
@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("signs", [False, True])
def test_the_transform_is_its_own_inverse_and_loses_nothing_by_itself(n: int, block: int, signs: bool) -> None:
    matrix = torch.stack(list(kernels.hadamard_blocks(list(torch.eye(block)), [block] * block, block)))
    assert torch.allclose(matrix @ matrix.T, torch.eye(block), atol=1e-6)
    assert torch.allclose(matrix.abs(), torch.full((block, block), block**-0.5)) and torch.equal(matrix, matrix.T)
    codec, x, meet = Transformed(Raw(), block, signs), drawn(0, n), Meeting(0, 2, 0, "x")
    torch.testing.assert_close(codec.decode(codec.encode(x, meet), x.shape, meet), x, rtol=0, atol=1e-6)
    spread = torch.zeros(n)
    spread[5] = 1.0
    sent = codec.encode(spread, meet).view(torch.float32)
    assert sent.numel() == -(-n // block) * block and sent.abs().max() == pytest.approx(block**-0.5)


def error(x: Tensor, text: str) -> float:
    """By how much a codec misses values, as a norm."""
    codec, meet = sentence(text).compressor, Meeting(0, 1, 0, "x")
    return float((codec.decode(codec.encode(x, meet), x.shape, meet) - x).norm())


@pytest.mark.parametrize("seed", [0, 1])
def test_an_outlier_costs_its_neighbours_less_after_the_transform_and_a_common_sign_more_unless_signs_are_random(
    seed: int,
) -> None:
    x = drawn(seed, 1280)
    alike = x.abs()
    x[::128] = 50.0
    four, transformed = "int4(128)", "int4(128)+hadamard(32)"
    assert error(x, transformed) < 0.7 * error(x, four)
    assert error(alike, transformed) > 1.3 * error(alike, four)
    signed = "int4(128)+hadamard(32, signs=true)"
    assert error(x, signed) < 0.7 * error(x, four) and error(alike, signed) < 1.1 * error(alike, four)


def test_four_bits_of_plain_weights_are_refused() -> None:
    with pytest.raises(laconic.StrategyError, match="differences"):
        laconic.simulate(lambda: WeightsTier(sentence("int4(128)"), connect().world), 1)
