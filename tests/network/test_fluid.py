"""The fluid network: exact max-min rates, latency, lanes; trees of links."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laconic.errors import LaconicError
from laconic.network.fluid import Fluid, Job
from laconic.network.network_tree import Level, Network
from laconic.units import bits_per_second, seconds


def ends(
    capacities: list[float], jobs: list[tuple[float, dict[int, float], float]], lane: object = None
) -> list[float]:
    """When jobs (start, bytes by link, latency) end."""
    fluid, ended = Fluid(np.array(capacities, dtype=float), lane_width=1), [math.nan] * len(jobs)
    for k, (start, load, latency) in enumerate(jobs):
        links, amounts = np.array(list(load), dtype=np.int64), np.array(list(load.values()), dtype=float)

        def finished(t: float, k: int = k) -> None:
            ended[k] = t

        fluid.add(Job(links, amounts, latency, finished, lane), start)
    while (event := fluid.next_event()) < math.inf:
        fluid.advance(event)
    return ended


def test_alone_a_job_takes_latency_plus_bytes_over_the_tightest_link() -> None:
    assert ends([100.0, 10.0], [(1.0, {0: 200.0, 1: 50.0}, 0.5)]) == [1.0 + 0.5 + 5.0]


def test_two_jobs_share_a_link_and_speed_up_when_alone() -> None:
    first, second = ends([10.0], [(0.0, {0: 100.0}, 0.0), (0.0, {0: 50.0}, 0.0)])
    assert second == pytest.approx(10.0) and first == pytest.approx(15.0)


def test_max_min_gives_the_rest_to_those_who_can_use_it() -> None:
    """The textbook case: a long flow over two links, and one short flow on each."""
    long, tight, wide = ends([10.0, 30.0], [(0, {0: 50.0, 1: 50.0}, 0), (0, {0: 50.0}, 0), (0, {1: 250.0}, 0)])
    assert long == tight == pytest.approx(10.0)  # 5 each on the tight link
    assert wide == pytest.approx(10.0)  # 25 of 30 on the wide one


def test_a_lane_runs_its_jobs_one_after_another() -> None:
    assert ends([10.0], [(0, {0: 100.0}, 0), (0, {0: 50.0}, 0), (2, {0: 10.0}, 1.0)], "lane") == pytest.approx(
        [10.0, 15.0, 17.0]
    )


@pytest.mark.long
@given(
    capacities=st.lists(st.floats(1, 100), min_size=2, max_size=4),
    loads=st.lists(st.lists(st.floats(0.1, 50), min_size=4, max_size=4), min_size=1, max_size=6),
    starts=st.lists(st.floats(0, 5), min_size=6, max_size=6),
)
def test_no_job_beats_its_links_and_no_link_is_overfull(
    capacities: list[float], loads: list[list[float]], starts: list[float]
) -> None:
    n = len(capacities)
    jobs = [(start, dict(enumerate(load[:n])), 0.0) for load, start in zip(loads, starts, strict=False)]
    finished = ends(capacities, jobs)
    for (start, load, _), end in zip(jobs, finished, strict=True):
        assert end >= start + max(load[k] / capacities[k] for k in load) - 1e-9
    for link, capacity in enumerate(capacities):
        first = min(start for start, _, _ in jobs)
        assert sum(load[link] for _, load, _ in jobs) <= capacity * (max(finished) - first) * (1 + 1e-9)


def test_links_of_a_tree() -> None:
    network = Network(8, (Level(1, 8e9, 1e-6), Level(4, 8e8, 1e-3)))
    links, load, latency = network.load([0], [1], [100.0])
    assert (links.tolist(), load.tolist(), latency) == ([0, 3], [100.0, 100.0], 1e-6)
    links, load, latency = network.load([0, 1], [4, 5], [100.0, 50.0])
    assert latency == 1e-3
    shared = dict(zip(links.tolist(), load.tolist(), strict=True))
    assert shared[16] == shared[16 + 3] == 150.0  # both leave machine 0 and enter machine 1


def test_networks_that_make_no_sense_are_refused() -> None:
    for levels in [(), (Level(2, 1e9),), (Level(1, 1e9), Level(4, 1e9), Level(6, 1e9))]:
        with pytest.raises(LaconicError):
            Network(12, levels)
    with pytest.raises(LaconicError):
        Level(1, 0.0)


def test_rates_and_times_as_people_write_them() -> None:
    assert bits_per_second("100Mbit") == 1e8 and bits_per_second("1.5 Gb/s") == 1.5e9 and bits_per_second(5) == 5.0
    assert seconds("50us") == 5e-5 and seconds("25ms") == 0.025 and seconds(2) == 2.0
    with pytest.raises(LaconicError, match="100Mbit"):
        bits_per_second("fast")
    read = Network.read(4, {"levels": [{"bandwidth": "1Gbit", "latency": "50us"}]})
    assert read == Network.flat(4, 1e9, 5e-5)
