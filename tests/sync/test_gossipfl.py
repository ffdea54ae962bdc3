"""GossipFL: matchings of fast links that join all, parts of the model that nobody names, and what they save."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest

from laconic.network.network_tree import Level, Network
from laconic.topology.fast_matchings import FastMatchings, random_matching
from tests.data import cases
from tests.sync.gossiping import DIMENSION, classify, draws, sgd, walk

CITIES = 14


def skewed(size: int, seed: int) -> Network:
    """Cities whose pairs have rates spread over two orders of magnitude, in bits per second."""
    rates = 10 ** np.random.default_rng(seed).uniform(5, 7, (size, size))
    return Network(size, (Level(1, 1e8),), pairs={(a, b): rates[a, b] for b in range(size) for a in range(b)})


def everyone(size: int) -> tuple[tuple[int, int], ...]:
    return tuple((a, b) for a in range(size) for b in range(a + 1, size))


@pytest.mark.evidence("gossipfl", recording="gossipfl.json")
@pytest.mark.parametrize("case", range(3))
def test_rounds_want_the_pairs_of_the_authors_program(case: int) -> None:
    """The matching itself is random: the recorded one is taken over before the next round. Rates have twelve digits."""
    known = cases("gossipfl.json")[case]
    size, rates = known["workers"], np.array(known["bandwidth"])
    fast = tuple(edge for edge in everyone(size) if rates[edge] > known["bandwidth_threshold"] + 1e-9)
    rule = FastMatchings(everyone(size), fast, known["recent_rounds"])
    last = np.zeros((size, size), dtype=np.int64)
    for row in known["rounds"]:
        number, allowed = row["round"], rule.allowed(last, row["round"])
        assert rule.is_connected(last, number) == row["connected"]
        assert len(allowed) == row["allowed_count"]
        if row["allowed_pairs"] is not None:
            assert sorted(allowed) == sorted(map(tuple, row["allowed_pairs"]))
        found = rule.match(last, number, seed=case)
        assert len(found) == size // 2 and set(found) <= set(everyone(size))
        assert set(found) <= set(allowed) or not row["perfect_match_possible"]
        assert (len(random_matching(allowed, number, case)) == size // 2) == row["perfect_match_possible"]
        for a, b in row["match"]:
            last[a, b] = last[b, a] = number


def partner(tier: Any) -> int:
    """Whom a worker was matched with in this step; -1: nobody."""
    last, number = tier.sync_state["last"][tier.group.rank], int(tier.sync_state["round"])
    return int(last.argmax()) if int(last.max()) == number else -1


@pytest.mark.technique("gossipfl", check=1)
@pytest.mark.parametrize("size", [4, 7, 10])
def test_every_round_is_a_matching_and_masks_need_no_index(size: int) -> None:
    """Workers are pulled to different targets, so that every entry that is averaged changes."""
    steps, ratio = 12, 0.4
    seen = walk(f"gossipfl({ratio})", size, steps, targets=draws(size, DIMENSION, seed=size), look=partner,
                network=skewed(size, size))  # fmt: skip
    stepped = seen.x[:-1] - 0.1 * seen.gradients
    moved = np.abs(seen.x[1:] - stepped) > 1e-12
    for step, partners in enumerate(seen.seen):
        paired = [(rank, other) for rank, other in enumerate(partners) if other >= 0]
        assert len(paired) == 2 * (size // 2) and all(partners[other] == rank for rank, other in paired)
        for rank, other in paired:
            where = moved[step, rank]
            assert where.sum() == 2, "as many entries as the mask has"
            np.testing.assert_array_equal(where, moved[step, other])
            mean = (stepped[step, rank] + stepped[step, other]) / 2
            np.testing.assert_allclose(seen.x[step + 1, rank][where], mean[where], atol=1e-15)
    assert len({tuple(moved[step].any(axis=0)) for step in range(steps)}) > 3, "each round has its own mask"
    rounds_paired = [sum(partners[rank] >= 0 for partners in seen.seen) for rank in range(size)]
    assert seen.sent_bytes == [8 * 2 * count for count in rounds_paired]


@pytest.mark.technique("gossipfl", check=1)
def test_a_hundredth_of_a_network_is_what_travels() -> None:
    def look(tier: Any) -> float:
        sent: float = tier.worker.ledger.sent_bytes("payload")
        return sent

    before, after = (classify("gossipfl", 4, steps, sgd(0.1), look) for steps in (1, 11))
    assert {b.seen - a.seen for a, b in zip(before, after, strict=True)} == {10 * 4 * round(2410 / 100)}


@pytest.mark.technique("gossipfl", check=2)
@pytest.mark.parametrize(("size", "seed"), [(6, 0), (9, 1)])
def test_a_window_of_rounds_joins_all_and_the_mean_is_kept(size: int, seed: int) -> None:
    seen = walk("gossipfl(0.3)", size, 30, sgd(0.0), starts=draws(size, DIMENSION, seed=seed), look=partner,
                network=skewed(size, seed))  # fmt: skip
    np.testing.assert_allclose(seen.mean, np.broadcast_to(seen.mean[0], seen.mean.shape), atol=1e-6)
    window = 12
    for first in range(30 - window):
        rows = seen.seen[first : first + window]
        graph = nx.Graph((a, b) for row in rows for a, b in enumerate(row) if b >= 0)
        assert len(graph) == size and nx.is_connected(graph)
    assert seen.disagreement[-1] < 0.2 * seen.disagreement[0]


@pytest.mark.parametrize("seed", range(3))
def test_fast_pairs_alone_would_leave_workers_apart(seed: int) -> None:
    """Two islands with slow links between them: pairs across are matched only because nobody has met for long."""
    rule = FastMatchings(everyone(8), tuple((a, b) for a, b in everyone(8) if a // 4 == b // 4))
    last, across = np.zeros((8, 8), dtype=np.int64), []
    for number in range(1, 41):
        found = rule.match(last, number, seed)
        across.append(sum(a // 4 != b // 4 for a, b in found))
        for a, b in found:
            last[a, b] = last[b, a] = number
    assert 0 in across[:2] and max(across) > 0
    assert all(sum(across[k : k + 12]) for k in range(28)), "never apart for long"


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_the_slowest_matched_link_of_fourteen_cities_is_twice_that_of_random_pairs(seed: int) -> None:
    network = skewed(CITIES, seed)
    seen = walk("gossipfl", CITIES, 40, look=partner, network=network)
    chosen = [[(a, b) for a, b in enumerate(row) if a < b] for row in seen.seen]
    drawn = [random_matching(everyone(CITIES), step, seed) for step in range(400)]
    ours, theirs = (np.mean([min(network.pairs[p] for p in row) for row in rows]) for rows in (chosen, drawn))
    assert ours >= 2 * theirs
