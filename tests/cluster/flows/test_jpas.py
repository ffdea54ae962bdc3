"""JPAS: who has least to send goes first and notices nobody; one class is fair sharing."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from laconic.cluster.flows.jpas import jpas
from laconic.cluster.flows.rates import fair
from laconic.cluster.flows.traffic import FlowJob, send_all
from laconic.errors import ClusterError
from tests.cluster.flows.mixes import GBIT, ring, training


@pytest.mark.technique("jpas", check=1)
@pytest.mark.parametrize("iterations", [(9, 4), (4, 9), (12, 11)])
def test_two_jobs_on_one_link_end_in_the_order_of_what_is_left(iterations: tuple[int, int]) -> None:
    jobs = [FlowJob(f"job{i}", 0.0, ring([0, 1], 40e6), count) for i, count in enumerate(iterations)]
    seconds = send_all(jobs, 2, GBIT, jpas).seconds
    first = int(np.argmin(iterations))
    assert seconds[first] < seconds[1 - first]
    assert seconds[first] == pytest.approx(send_all([jobs[first]], 2, GBIT, jpas).seconds[0], rel=1e-9)
    assert seconds[1 - first] == pytest.approx(sum(iterations) * 40e6 / GBIT)


@pytest.mark.technique("jpas", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_one_class_is_fair_sharing(seed: int) -> None:
    jobs = training(seed, 6, iterations=(2, 5))
    one = send_all(jobs, 8, 10 * GBIT, partial(jpas, classes=1)).completed
    assert one == pytest.approx(send_all(jobs, 8, 10 * GBIT, fair).completed, rel=1e-6)
    assert not np.allclose(one, send_all(jobs, 8, 10 * GBIT, jpas).completed, rtol=1e-3)


@pytest.mark.technique("jpas", check=1)
def test_a_rank_improves_as_a_job_progresses() -> None:
    # the long one has three quarters behind it when the short one comes, and has less left than that
    jobs = [FlowJob("long", 0.0, ring([0, 1], 50e6), 20), FlowJob("short", 6.0, ring([0, 1], 50e6), 12)]
    long, short = send_all(jobs, 2, GBIT, partial(jpas, period=0.5)).completed
    assert long == pytest.approx(8.0, rel=1e-6)
    assert short == pytest.approx(32 * 50e6 / GBIT)


@pytest.mark.long
@pytest.mark.technique("jpas", check=2)
@pytest.mark.parametrize("seed", range(4))
def test_jobs_that_mostly_send_are_done_sooner_than_with_fair_flows_and_the_last_hardly_later(seed: int) -> None:
    """Jobs of 5 to 30 iterations, which compute for 6 to 20 % of the time for which they send. Where that is 30 to
    100 %, the mean falls as much, and the last job, which computes alone in the end, is 1 to 9 % later."""
    jobs = training(seed, spread=3.0, iterations=(5, 30), compute=(0.06, 0.2))
    ours, others = (send_all(jobs, 8, 10 * GBIT, rule).seconds for rule in (jpas, fair))
    assert ours.mean() <= 0.85 * others.mean()
    assert ours.max() <= 1.05 * others.max()


def test_the_last_class_is_shared_by_the_rest() -> None:
    jobs = [FlowJob(f"job{i}", 0.0, ring([0, 1], 10e6), 3 + i) for i in range(4)]
    ends = send_all(jobs, 2, GBIT, partial(jpas, classes=2, period=100.0)).completed
    assert ends[0] == pytest.approx(3 * 10e6 / GBIT)
    assert ends[1] > 3 * 4 * 10e6 / GBIT  # three share what is left, so the second is not second at once
    assert all(a < b for a, b in pairwise(ends))
    with pytest.raises(ClusterError, match="at least one"):
        send_all(jobs, 2, GBIT, partial(jpas, classes=0))
