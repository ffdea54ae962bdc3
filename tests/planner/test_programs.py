"""Plans price a sum by the program that makes it."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.architecture.collective import MESSAGE_SECONDS, Collective
from laconic.collective.generators import make_program
from laconic.collective.price import price
from laconic.cost.collectives import CollectiveCosts
from laconic.network.network_tree import Level, Network
from laconic.planner.deployment import Deployment
from laconic.planner.price import Pricer
from tests.planner.test_advise import CONVOLUTIONAL

HOSTS = Network(6, (Level(1, 1e9, 20e-6), Level(3, 1e8, 80e-6)))
SIZES = np.array([0.0, 400.0, 4e5, 8e6, 4e5])


@pytest.mark.parametrize("name", ["ring", "hierarchical", "double_tree"])
def test_named_programs_have_their_own_prices(name: str) -> None:
    found = Collective(name).sum_seconds(SIZES, HOSTS)
    assert found is not None
    for nbytes, alone, shared in zip(SIZES.tolist(), *found, strict=True):
        expected = price(make_program(name, 6, 3), nbytes, HOSTS, MESSAGE_SECONDS)
        assert (alone, shared) == ((expected.seconds, expected.busiest_seconds) if nbytes else (0.0, 0.0))


def test_what_would_be_chosen_costs_about_the_least_of_all() -> None:
    names = ("ring", "hierarchical", "blueconnect", "halving_doubling", "double_tree", "recursive_doubling")
    least = np.min([Collective(name).sum_seconds(SIZES, HOSTS)[0] for name in names], axis=0)  # type: ignore[index]
    chosen = Collective("auto").sum_seconds(SIZES, HOSTS)
    assert chosen is not None and (chosen[0] <= 1.07 * least).all()
    plain = CollectiveCosts(HOSTS, 6).carry("reduce", SIZES).alone_seconds
    assert chosen[0][1] == plain[1] < least[1]  # messages cost more than they save: the transport's own is taken


def test_a_plan_knows_that_programs_for_hosts_are_faster_between_hosts() -> None:
    pricer = Pricer(Deployment(CONVOLUTIONAL, HOSTS, 6))
    plain, ring, chosen = (
        pricer.price(f"bsp / none / {word}").exposed_seconds
        for word in ("allreduce", "collective(ring)", "collective(auto)")
    )
    assert ring == pytest.approx(plain, rel=0.05) and chosen < 0.8 * plain
