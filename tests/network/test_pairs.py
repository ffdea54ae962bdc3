"""Pairs of workers with a slower way between them."""

from __future__ import annotations

import pytest
import torch

import laconic
from laconic.errors import LaconicError
from laconic.network.network_tree import Level, Network
from laconic.real.connect import connect

PAIRS = {(0, 1): 8e3, (3, 1): 4e3}


def swaps(network: Network, pairs: list[tuple[int, int]]) -> list[float]:
    """The seconds after which each worker has swapped 100 bytes with its partner."""
    partner = dict([*pairs, *((b, a) for a, b in pairs)])

    def body() -> float:
        rank = laconic.rank()
        if rank in partner:
            sends, receives = torch.zeros(100, dtype=torch.uint8), torch.empty(100, dtype=torch.uint8)
            for handle in connect().world.swap([(sends, partner[rank])], [(receives, partner[rank])], 0.0):
                handle.wait()
        return connect().clock_seconds()

    return list(laconic.simulate(body, network.size, network).results)


@pytest.mark.parametrize("network", [Network(4, (Level(1, 80e3),), pairs=PAIRS), Network.read(
    4, {"levels": [{"bandwidth": "80kbit"}], "pairs": {"1-0": "8kbit", "1-3": "4kbit"}})])  # fmt: skip
def test_a_transfer_takes_the_time_of_its_pairs_own_way(network: Network) -> None:
    assert swaps(network, [(0, 1), (2, 3)]) == pytest.approx([0.1, 0.1, 0.01, 0.01])
    assert swaps(network, [(0, 2), (1, 3)]) == pytest.approx([0.01, 0.2, 0.01, 0.2])


def test_a_faster_way_does_not_outrun_the_workers_own_link() -> None:
    network = Network(2, (Level(1, 8e3),), pairs={(0, 1): 1e9})
    assert swaps(network, [(0, 1)]) == pytest.approx([0.1, 0.1])
    assert swaps(network.free(), [(0, 1)]) == pytest.approx([0, 0])


@pytest.mark.parametrize("pairs", [{(0, 0): 1.0}, {(0, 4): 1.0}, {(0, 1): 0.0}])
def test_pairs_that_make_no_sense_are_refused(pairs: dict[tuple[int, int], float]) -> None:
    with pytest.raises(LaconicError, match="makes no sense"):
        Network(4, (Level(1, 1e6),), pairs=pairs)


def test_a_pair_in_a_file_is_two_numbers() -> None:
    with pytest.raises(LaconicError, match="write two numbers, as in 0-3"):
        Network.read(4, {"levels": [{"bandwidth": "1Mbit"}], "pairs": {"0,1": "1Mbit"}})
