"""OmniReduce: exact sums, of exactly the blocks that are not zero, in the published time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import laconic
from laconic.collective.generators import make_program
from laconic.collective.sparse.blocks import Layout, omnireduce
from laconic.compression.block_topk import BlockTopK
from laconic.network.network_tree import Network
from laconic.runtime.meeting import Meeting
from laconic.values.tensor_spec import TensorSpec
from tests.collective.sparse.running import Ended, run, vectors
from tests.collective.sparse.test_sums import supports, trained

POINTER = 4


def summed(
    inputs: list[Tensor], apart: bool, block: int, fused: int, aggregators: int, network: Network | None = None
) -> list[Ended]:
    """Sum by aggregators that are members of their own, behind the workers, or that are the first workers."""
    p = len(inputs)
    workers = list(range(p))
    owners = list(range(p, p + aggregators)) if apart else workers[:aggregators]

    def communicate(group: Any) -> Any:
        x = inputs[group.rank] if group.rank < p else torch.zeros_like(inputs[0])
        return omnireduce(x, group, workers, owners, block, fused)

    return run(communicate, p + aggregators * apart, network)


@pytest.mark.technique("omnireduce", check=1)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("size", "aggregators"), [(2, 1), (3, 3), (4, 2)])
def test_the_sum_is_exact_for_any_supports(size: int, aggregators: int, apart: bool) -> None:
    for seed, numel in enumerate([1, 50, 201]):
        for kind, where in supports(numel, size, seed).items():
            inputs = vectors(where, numel, seed)
            for one in summed(inputs, apart, block=4, fused=1 + seed, aggregators=aggregators)[:size]:
                assert torch.equal(one.result, sum(inputs, torch.zeros(numel))), (kind, numel)


def blocks_of(x: Tensor, block: int) -> Tensor:
    """Whether each block has a value that is not zero."""
    return torch.nn.functional.pad(x, (0, -len(x) % block)).view(-1, block).ne(0).any(1)


@pytest.mark.technique("omnireduce", check=1)
@pytest.mark.parametrize(("aggregators", "fused"), [(1, 1), (3, 2)])
def test_workers_send_their_blocks_and_aggregators_the_union(aggregators: int, fused: int) -> None:
    """Exactly, and beside them the first block of each stream; pointers are control."""
    size, numel, block = 3, 4 * 60 - 1, 4
    for seed in range(4):
        draw = torch.Generator().manual_seed(seed)
        chosen = [torch.randperm(60, generator=draw)[: 3 + 5 * rank] for rank in range(size)]
        where = [(block * c[:, None] + torch.arange(2)).view(-1) for c in chosen]
        inputs = vectors([w[w < numel] for w in where], numel, seed)
        layout = Layout.of(numel, block, fused, aggregators)
        first = torch.arange(60) < layout.columns
        used = [blocks_of(x, block) | first for x in inputs]
        ended = summed(inputs, True, block, fused, aggregators)
        for one, mine in zip(ended[:size], used, strict=True):
            assert one.payload == pytest.approx(int(mine.sum()) * block * 4)
            assert one.control == pytest.approx(int(mine.sum()) * POINTER)
        union = torch.stack(used).any(0)
        for a, one in enumerate(ended[size:]):
            owned = torch.arange(60) % layout.columns % aggregators == a
            assert one.payload == pytest.approx(size * int((union & owned).sum()) * block * 4)


def test_only_first_blocks_are_sent_of_nothing() -> None:
    for one in summed([torch.zeros(4000)] * 2, True, 4, 1, 2)[:2]:
        assert one.payload == pytest.approx(4 * 4 * 4) and not one.result.any()


@pytest.mark.long
@pytest.mark.technique("omnireduce", check=2)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("density", [0.01, 0.1, 0.5, 1.0])
def test_the_gain_over_a_ring_is_the_published_one(density: float, size: int) -> None:
    """With as many aggregators as workers and equal supports, on links without latency; at density one a worker's
    vector crosses its link once."""
    block, fused = 64, 1
    columns = 2 * fused * size
    rows = round(30 / density)
    used = torch.zeros(rows, columns, dtype=torch.bool)
    used[:: round(1 / density)] = True
    x = used.view(-1, 1).expand(-1, block).reshape(-1).float()
    inputs, rate = [x.clone() for _ in range(size)], 1e9
    ended = summed(inputs, True, block, fused, size, Network.flat(2 * size, rate))
    assert torch.equal(ended[0].result, size * x)
    omni = max(one.seconds for one in ended)
    program = make_program("ring", size)
    alone = Network.flat(size, rate)
    ring = max(one.seconds for one in run(lambda g: g.run(program, inputs[g.rank].clone()), size, alone))
    assert ring == pytest.approx(2 * (size - 1) / size * 32 * len(x) / rate, rel=0.01)
    assert ring / omni == pytest.approx(2 * (size - 1) / (size * density), rel=0.1)
    if density == 1:
        assert omni == pytest.approx(32 * len(x) / rate, rel=0.1)


def test_blocks_train_as_gathered_messages_do() -> None:
    plain = laconic.simulate(lambda: trained("bsp / topk(0.02)+ef"), 4).results
    found = laconic.simulate(lambda: trained("bsp / topk(0.02)+zero_filled+ef / omnireduce(8, 2)"), 4).results
    for parameters, _ in found:
        for ours, first, theirs in zip(parameters, found[0][0], plain[0][0], strict=True):
            assert torch.equal(ours, first)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("numel", [1, 64, 999, 1000])
def test_the_blocks_of_the_largest_norms_are_selected_whole(numel: int) -> None:
    """As places of a message of their numbers; what is left is at most 1 - k/blocks of the square."""
    made = BlockTopK(0.2, block=8)
    every, k = made.blocks(numel)
    for seed in range(3):
        x = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
        x[-1] = 9.0 if seed else 0.0  # with the shorter last block, and without it
        payload = made.encode(x, Meeting(0, 1, 0, "x"))
        found = made.decode(payload, x.shape, Meeting(0, 1, 0, "x"))
        norms = torch.nn.functional.pad(x, (0, -numel % 8)).view(-1, 8).norm(dim=1)
        kept = torch.zeros(every, dtype=torch.bool).index_fill(0, norms.topk(k).indices, True)
        expected = torch.where(kept.repeat_interleave(8)[:numel], x, 0)
        assert torch.equal(found, expected)
        assert (x - found).square().sum() <= (1 - k / every) * x.square().sum() + 1e-6
        assert len(payload) <= made.payload_bytes(TensorSpec("x", (numel,), torch.float32), 1)


def test_selected_blocks_are_all_that_is_sent_of_them() -> None:
    """Two workers select a tenth of 50 blocks each: that many cross, and the first of each stream."""
    sent = laconic.simulate(lambda: trained("bsp / block_topk(0.1, 64)+zero_filled+ef / omnireduce(64, 1)"), 2).results
    dense = laconic.simulate(lambda: trained("bsp / none / omnireduce(64, 1)"), 2).results
    assert all(torch.equal(a, b) for a, b in zip(sent[0][0], sent[1][0], strict=True))
    assert sent[1][1] < 0.4 * dense[1][1]
