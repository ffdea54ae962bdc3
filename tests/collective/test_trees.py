"""Trees: exact sums, few messages, one block at a time, and the times of their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from laconic.collective.choose import choose
from laconic.collective.price import price
from laconic.collective.program import Program
from laconic.collective.rings import ring
from laconic.collective.trees import best_blocks, binary_tree, binomial, chain, double_tree, first_tree, second_tree
from laconic.network.network_tree import Network
from tests.collective.on_virtual_workers import assert_sums
from tests.collective.test_programs import summed

ALPHA, BETA = 5.6e-6, 1.373e-10


def assert_one_port(program: Program) -> None:
    for end in (program.sends.source, program.sends.destination):
        assert len(np.unique(program.sends.step * program.size + end)) == len(program.sends)


@pytest.mark.technique("tree_allreduce", check=1)
@pytest.mark.parametrize("size", range(1, 34))
def test_sums_rise_and_are_spread(size: int) -> None:
    depth = (size - 1).bit_length()
    program = binomial(size)
    assert program.steps == 2 * depth and len(program.sends) == 2 * (size - 1)
    for one in (program, binary_tree(size, blocks=3), chain(size, blocks=3)):
        vectors = np.random.default_rng(size).integers(-99, 99, (size, one.chunks))
        assert (summed(one, vectors) == vectors.sum(axis=0)).all()
        if size in (1, 2, 5, 8, 33):
            assert_sums(one)


@pytest.mark.parametrize("size", [2, 3, 8, 16])
def test_a_binomial_tree_takes_what_its_formula_says(size: int) -> None:
    """T = 2q (α + S β) + q S γ with q = ceil(log2 p)."""
    depth, nbytes = (size - 1).bit_length(), 3e5
    found = price(binomial(size), nbytes, Network.flat(size, 8 / BETA, ALPHA), add_seconds_per_byte=1e-10)
    expected = 2 * depth * (ALPHA + nbytes * BETA) + depth * nbytes * 1e-10
    assert found.seconds == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("size", [2, 3, 6, 9])
def test_a_chain_takes_what_its_formula_says(size: int) -> None:
    """k + 2p - 3 steps, in k - 1 of which a rank with two neighbours sends or receives two blocks."""
    for blocks in (1, 4, 16):
        found = price(chain(size, blocks), 1e6, Network.flat(size, 8 / BETA, ALPHA))
        steps = blocks + 2 * size - 3
        sent = steps + (blocks - 1 if size > 2 else 0)
        assert found.seconds == pytest.approx(steps * ALPHA + sent * 1e6 * BETA / blocks, rel=1e-9)


@pytest.mark.parametrize("size", [3, 4, 7])
def test_a_chain_is_the_choice_where_the_last_rank_is_slow(size: int) -> None:
    """It sends one vector and receives one at the same time, where a ring has it send 2(p-1)/p of one."""
    network = Network.flat(size, [1e8] * (size - 1) + [2e7], 1e-5)
    taken = choose("all_reduce", 1e7, network)
    assert taken == chain(size, 64)
    least, ring_seconds = 8 * 1e7 / 2e7, price(ring(size), 1e7, network).seconds
    assert least < price(taken, 1e7, network).seconds < min(1.3 * least, ring_seconds / 1.2)


@pytest.mark.technique("tree_allreduce", check=2)
@pytest.mark.parametrize("size", [4, 7, 16, 31])
def test_a_binary_tree_needs_twice_the_best_time_for_large_vectors(size: int) -> None:
    """With ever more bytes, and so more blocks, the time tends to 4 S β; the formula's 4(k + h)(α + S β / k) bounds it
    on the way."""
    network, ratios = Network.flat(size, 8 / BETA, ALPHA), []
    for nbytes in (1e6, 1e8, 1e10):
        blocks = min(400, best_blocks(size, nbytes, ALPHA, BETA, trees=1))
        program = binary_tree(size, blocks)
        assert_one_port(program)
        seconds = price(program, nbytes, network).seconds
        depth = math.ceil(math.log2(size))
        assert seconds <= 4 * (blocks + depth) * (ALPHA + nbytes * BETA / blocks) * (1 + 1e-9)
        ratios.append(seconds / (nbytes * BETA))
    assert ratios[0] > ratios[1] > ratios[2]
    assert ratios[2] == pytest.approx(4.0, rel=0.02)


@pytest.mark.technique("double_binary_tree_allreduce", check=1)
def test_two_trees_share_their_inner_ranks_out() -> None:
    for size in range(2, 301):
        trees = first_tree(size), second_tree(size)
        inner = [{parent for parent in parents if parent >= 0} for parents in trees]
        for parents in trees:
            assert parents.count(-1) == 1
            for rank in range(size):
                depth = 0
                while parents[rank] >= 0:  # a way to the root from everywhere: it spans
                    rank, depth = parents[rank], depth + 1
                assert depth <= (size - 1).bit_length()
            children = np.bincount([p for p in parents if p >= 0], minlength=size)
            assert children.max() <= 2 and children.sum() == size - 1
        if size % 2 == 0:
            assert inner[0] | inner[1] == set(range(size)) and not inner[0] & inner[1]
        else:
            assert inner[0] | inner[1] == set(range(size)) and inner[0] & inner[1] == {0}


@pytest.mark.technique("double_binary_tree_allreduce", check=2)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8, 12, 17, 33])
def test_no_rank_of_two_trees_sends_or_receives_more_than_two_vectors(size: int) -> None:
    program = double_tree(size, blocks=5)
    assert_one_port(program)
    received = np.bincount(program.sends.destination, program.shares[program.sends.chunk], size)
    assert program.sent_shares.max() <= 2 + 1e-12 and received.max() <= 2 + 1e-12
    assert_sums(program)


def double_tree_formula(size: int, nbytes: float) -> float:
    """T = 2 (√(S β) + √(2 h α))², h = ceil(log2 p)."""
    return 2 * (math.sqrt(nbytes * BETA) + math.sqrt(2 * (size - 1).bit_length() * ALPHA)) ** 2


def ring_formula(size: int, nbytes: float) -> float:
    return 2 * (size - 1) * ALPHA + 2 * (size - 1) / size * nbytes * BETA


@pytest.mark.long
@pytest.mark.technique("double_binary_tree_allreduce", check=3)
@pytest.mark.parametrize(("nbytes", "ratio"), [(1e6, 11.8), (1e9, 0.98)])
def test_many_ranks_are_summed_faster_by_two_trees_than_by_a_ring_unless_vectors_are_large(
    nbytes: float, ratio: float
) -> None:
    size = 1024
    assert ring_formula(size, nbytes) / double_tree_formula(size, nbytes) == pytest.approx(ratio, rel=0.01)
    program = double_tree(size, best_blocks(size, nbytes, ALPHA, BETA))
    seconds = price(program, nbytes, Network.flat(size, 8 / BETA, ALPHA)).seconds
    assert ring_formula(size, nbytes) / seconds == pytest.approx(ratio, rel=0.25)


@pytest.mark.technique("double_binary_tree_allreduce", check=3)
def test_some_ranks_are_summed_faster_by_two_trees_than_by_a_ring_unless_vectors_are_large() -> None:
    size = 64
    for nbytes in (1e5, 1e6, 1e8):
        network = Network.flat(size, 8 / BETA, ALPHA)
        program = double_tree(size, best_blocks(size, nbytes, ALPHA, BETA))
        found = price(ring(size), nbytes, network).seconds / price(program, nbytes, network).seconds
        assert found == pytest.approx(ring_formula(size, nbytes) / double_tree_formula(size, nbytes), rel=0.25)
