"""ZeRO++: integers of eight bits for weights, slices inside hosts, and two hops of four bits for gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import laconic
from laconic.architecture.sharded import sharded_method
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.sharded.gather import ShardGather, WeightsTier
from laconic.runtime.sharded.scatter import OwnersTier, ShardScatter
from laconic.strategy import Strategy
from laconic.worker import Kind
from tests.sharded.training import blocks, trained

N = 8 * 128 * 3  # values of a flat gradient


def sentence(text: str) -> Any:
    return Strategy.parse(text)


def drawn(rank: int, n: int = N, seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(100 * seed + rank))


def run(communication: Any) -> Any:
    exchange = InFlight(communication)
    complete([exchange])
    return exchange.result


def scattered(
    text: str, hosts: int, make: Callable[[int], Tensor], steps: int = 1
) -> Callable[[], tuple[Tensor, float]]:
    """What a worker does: scatter its gradient inside its host and across hosts; its shard, and the bytes it sent to
    other hosts."""

    def body() -> tuple[Tensor, float]:
        worker: Any = connect()
        inner = worker.size // hosts
        host, place = divmod(worker.rank, inner)
        inside = worker.group(range(host * inner, (host + 1) * inner))
        across = worker.group(range(place, worker.size, inner))
        tiers = [OwnersTier(sentence(text), group, worker=worker) for group in (inside, across)]
        crossing = 0.0
        count = across.all_to_all

        def counted(tensor: Tensor, *more: Any, **options: Any) -> Any:
            nonlocal crossing
            crossing += tensor.nbytes * (across.size - 1) / across.size
            return count(tensor, *more, **options)

        across.all_to_all = counted
        scatter = ShardScatter(tiers)
        for _ in range(steps):
            shard = run(scatter.mean("gradient", make(worker.rank)))
        return shard, crossing

    return body


# ---------------------------------------------------------------------------------------------- qgZ


@pytest.mark.technique("zeropp_qgz", check=1)
@pytest.mark.parametrize(("workers", "hosts"), [(4, 2), (8, 2), (8, 4), (6, 3)])
def test_two_hops_leave_every_shard_of_the_mean_with_its_owner(workers: int, hosts: int) -> None:
    """With uncoded hops; whole numbers are added up without rounding, in whatever order."""

    def whole(rank: int) -> Tensor:
        return torch.arange(workers * 5.0) * workers + 7 * rank

    shards = [shard for shard, _ in laconic.simulate(scattered("none", hosts, whole), workers).results]
    mean = torch.stack([whole(rank) for rank in range(workers)]).mean(0)
    torch.testing.assert_close(torch.cat(shards), mean, rtol=0, atol=0)


def test_hops_of_unequal_sums_are_the_plain_reduce_scatter_to_rounding() -> None:
    shards = [shard for shard, _ in laconic.simulate(scattered("none", 2, drawn), 4).results]
    torch.testing.assert_close(torch.cat(shards), torch.stack([drawn(r) for r in range(4)]).mean(0))


def error(workers: int, hosts: int, seed: int) -> float:
    def draw(rank: int) -> Tensor:
        return drawn(rank, seed=seed)

    shards = [s for s, _ in laconic.simulate(scattered("int4(128)", hosts, draw), workers).results]
    mean = torch.stack([draw(rank) for rank in range(workers)]).mean(0)
    return float((torch.cat(shards) - mean).norm() / mean.norm())


@pytest.mark.technique("zeropp_qgz", check=2)
def test_four_bits_cross_and_the_error_is_that_of_two_roundings_however_many_hosts() -> None:
    for hosts in (2, 4):
        for _, crossing in laconic.simulate(scattered("int4(128)", hosts, drawn), 2 * hosts).results:
            values = N / 2 * (hosts - 1) / hosts  # of a member's half of the gradient, for the owners in other hosts
            assert crossing == values / 2 + 4 * values / 128
    once = [float((_rounded(drawn(r)) - drawn(r)).norm() / drawn(r).norm()) for r in range(4)]
    for seed in (0, 1):
        few, many = error(4, 2, seed), error(16, 8, seed)
        assert 0 < few < 2.5 * max(once) and many < 1.3 * few, (few, many, once)


def _rounded(x: Tensor) -> Tensor:
    codec = sentence("int4(128)").compressor
    return codec.decode(codec.encode(x, None), x.shape, None)


# ---------------------------------------------------------------------------------------------- qwZ


def gathered(weights: str, shards: Callable[[int], Tensor]) -> Callable[[], tuple[Tensor, float]]:
    def body() -> tuple[Tensor, float]:
        worker: Any = connect()
        gather = ShardGather(WeightsTier(sentence(weights), worker.world, worker=worker))
        shard = shards(worker.rank)
        out = torch.empty(worker.size * shard.numel(), dtype=shard.dtype)
        run(gather.gather("weights", shard, out))
        return out, worker.ledger.sent_bytes(Kind.PAYLOAD)

    return body


@pytest.mark.technique("zeropp_qwz", check=1)
def test_decoded_weights_are_the_same_everywhere_and_near_the_exact_ones() -> None:
    def shard(rank: int) -> Tensor:
        return drawn(rank, 1000) * torch.logspace(-3, 1, 1000)

    weights = sharded_method("zeropp_qwz").weights  # type: ignore[union-attr]
    exact = torch.cat([shard(rank) for rank in range(3)])
    first, *others = [out for out, _ in laconic.simulate(gathered(weights, shard), 3).results]
    assert all(torch.equal(first, other) for other in others)
    for row, wanted in zip(first.view(3, -1), exact.view(3, -1), strict=True):
        for near, block in zip(row.split(256), wanted.split(256), strict=True):
            assert (near - block).abs().max() <= block.abs().max() / 254 * (1 + 1e-5)
    assert not torch.equal(first, exact)
    uncoded = laconic.simulate(gathered("none", shard), 3).results[0][0]
    assert torch.equal(uncoded, exact)


@pytest.mark.technique("zeropp_qwz", check=2)
@pytest.mark.parametrize("block", [64, 256])
def test_the_gather_is_shorter_than_sixteen_bits_by_what_the_scales_leave(block: int) -> None:
    def shard(rank: int) -> Tensor:
        return drawn(rank, 4096).to(torch.bfloat16)

    (_, coded), *_ = laconic.simulate(gathered(f"int8({block})", shard), 4).results
    (_, dense), *_ = laconic.simulate(gathered("none", shard), 4).results
    assert dense / coded == pytest.approx(2 / (1 + 4 / block), rel=1e-9)


# ---------------------------------------------------------------------------------------------- hpZ


@pytest.mark.technique("zeropp_hpz", check=3)
def test_slices_for_all_are_stage_three_and_for_one_are_stage_two() -> None:
    def body() -> tuple[float, float]:
        return trained("none", 1, reshard_after_forward=4)[2], trained("none", 1, reshard_after_forward=1)[2]

    padded = sum(-(-p.shape[0] // 4) * 4 * p[0].numel() for p in blocks().parameters())
    assert laconic.simulate(body, 4).results == [(9 * padded, 6 * padded)] * 4
