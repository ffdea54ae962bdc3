"""SMD: capacities hold, utilities are near the best, and above Optimus's where bandwidth is scarce."""

from __future__ import annotations

import math

import numpy as np
import pytest

from laconic.cluster.marginal_gain import Demand, by_marginal_gain
from laconic.cluster.optimus_fits import ServerSpeed
from laconic.cluster.smd import Choice, RatioJob, choices, sum_of_ratios


def sigmoid(value: float, steep: float, due: float, seconds: float) -> float:
    return value / (1 + math.exp(min(steep * (seconds - due) / due, 50.0)))


def job(draws: np.random.Generator, worker: tuple[float, ...], server: tuple[float, ...], most: int) -> RatioJob:
    """A synchronous job of a batch of 64 that would take an hour or so on a few workers."""
    times = (draws.uniform(0.5, 2) / 64, draws.uniform(0, 0.1), draws.uniform(0.05, 0.5), draws.uniform(0, 0.03), 0.0)
    value, steep, due = draws.uniform(1, 10), draws.uniform(1, 6), draws.uniform(1000, 6000)

    def utility(seconds: float) -> float:
        return sigmoid(value, steep, due, seconds)

    return RatioJob(ServerSpeed(times, 64), draws.uniform(1000, 6000), utility, worker, server, (most, most))


def best(jobs: list[RatioJob], capacity: tuple[float, ...]) -> float:
    """The most utility of any whole numbers of workers and servers, by an exact program over all of them."""
    from scipy.optimize import LinearConstraint, milp

    every = [
        (j, one.utility(one.seconds(w, p)), w * np.array(one.worker) + p * np.array(one.server))
        for j, one in enumerate(jobs)
        for w in range(1, one.most[0] + 1)
        for p in range(1, one.most[1] + 1)
    ]
    once = np.array([[float(j == k) for j, _, _ in every] for k in range(len(jobs))])
    needs = np.array([need for *_, need in every]).T
    found = milp(
        [-u for _, u, _ in every],
        constraints=[LinearConstraint(once, ub=1), LinearConstraint(needs, ub=capacity)],
        integrality=np.ones(len(every)),
        bounds=(0, 1),
        options={"mip_rel_gap": 0},
    )
    return -float(found.fun)


@pytest.mark.long
@pytest.mark.technique("smd", check=1)
def test_utility_is_near_the_best_and_no_capacity_is_exceeded() -> None:
    near, runs = 0, 20
    for seed in range(runs):
        draws = np.random.default_rng(seed)
        jobs = [
            job(draws, (1.0, draws.uniform(0.5, 2)), (0.0, draws.uniform(1, 4)), 6)
            for _ in range(int(draws.integers(3, 9)))
        ]
        capacity = (float(draws.integers(6, 16)), float(draws.uniform(15, 40)))
        found = sum_of_ratios(jobs, capacity, eps=0.1, seed=seed)
        taken = [choice for choice in found if choice]
        assert (np.sum([choice.needs for choice in taken], axis=0) <= np.array(capacity) + 1e-6).all()
        for one, choice in zip(jobs, found, strict=True):
            if choice:
                check(one, choice)
        near += sum(choice.utility for choice in taken) >= 0.9 * best(jobs, capacity)
    assert near >= 0.95 * runs


def check(one: RatioJob, choice: Choice) -> None:
    assert choice.utility == pytest.approx(one.utility(one.seconds(choice.workers, choice.servers)))
    takes = [choice.workers * w + choice.servers * p for w, p in zip(one.worker, one.server, strict=True)]
    assert choice.needs == pytest.approx(tuple(takes))
    assert 1 <= choice.workers <= one.most[0] and 1 <= choice.servers <= one.most[1]


@pytest.mark.technique("smd", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_job_alone_is_nearly_as_quick_as_it_can_be(seed: int) -> None:
    draws = np.random.default_rng(seed)
    one = job(draws, (1.0, 1.0), (0.0, 2.0), 12)
    found = choices(one, np.array([10.0, 24.0]), 0.1, draws)
    every = [(w, p) for w in range(1, 11) for p in range(1, 13) if w + 2 * p <= 24]
    quickest = min(one.seconds(w, p) for w, p in every)
    assert min(one.seconds(c.workers, c.servers) for c in found) <= 1.1 * quickest


@pytest.mark.long
@pytest.mark.technique("smd", check=2)
@pytest.mark.parametrize("seed", range(4))
def test_more_utility_than_by_marginal_gain_where_bandwidth_is_scarce(seed: int) -> None:
    draws = np.random.default_rng(seed)
    # GPUs, cores, and bandwidth in Gb/s, of which there is a quarter of what all that the GPUs can run would take
    jobs = [job(draws, (1.0, 2.0, draws.uniform(0.5, 4)), (0.0, 4.0, draws.uniform(1, 8)), 8) for _ in range(12)]
    capacity = (48.0, 400.0, 45.0)
    smd = sum(choice.utility for choice in sum_of_ratios(jobs, capacity) if choice)
    demands = [Demand(lambda n, one=one: one.seconds(*n), [one.worker, one.server], one.most) for one in jobs]  # type: ignore[misc]
    counts = by_marginal_gain(demands, capacity)
    optimus = sum(one.utility(one.seconds(*n)) for one, n in zip(jobs, counts, strict=True) if all(n))
    assert smd >= 1.05 * optimus
