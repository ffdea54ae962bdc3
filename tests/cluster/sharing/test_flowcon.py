"""FlowCon: limits that follow how fast trainings still learn."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.sharing.flowcon import Node, rebalance
from laconic.errors import ClusterError

VALUES = st.floats(0, 10, allow_subnormal=False)


@pytest.mark.technique("flowcon", check=1)
@given(
    st.lists(st.dictionaries(st.sampled_from("abcde"), st.tuples(VALUES, st.floats(0, 1)), min_size=1), max_size=25),
    st.floats(0.01, 0.5),
    st.floats(1, 4),
)
@settings(max_examples=150, deadline=None)
def test_limits_are_parts_and_never_below_the_least(
    reports: list[dict[str, tuple[float, float]]], alpha: float, beta: float
) -> None:
    node, now = Node(), 0.0
    for report in reports:
        now += node.interval or 20.0
        node = rebalance(node, now, report, alpha=alpha, beta=beta)
        assert set(node.jobs) == set(report) and sum(node.shares().values()) == pytest.approx(1)
        for job in node.jobs.values():
            assert 0 < job.limit <= 1
            assert job.stage != "completing" or job.limit >= 1 / (beta * len(report))
        if len(report) == 1:
            assert next(iter(node.jobs.values())).limit == 1
        if all(job.stage == "completing" for job in node.jobs.values()):
            assert all(job.limit == 1 for job in node.jobs.values())


def passes(values: list[dict[str, float]], used: float = 0.5) -> list[Node]:
    """Return the node after each pass, in which trainings report these values."""
    nodes, now = [Node()], 0.0
    for value in values:
        now += nodes[-1].interval or 20.0
        nodes.append(rebalance(nodes[-1], now, {name: (x, used) for name, x in value.items()}))
    return nodes[1:]


def test_a_training_that_has_slowed_down_gives_way_after_two_intervals_and_comes_back() -> None:
    """The first falls by 4, then hardly; the second goes on falling. Their parts are 0.025 and 1."""
    first = [10.0, 6.0, 5.9, 5.8, 5.7, 1.7]
    found = passes([{"a": x, "b": 20.0 - k} for k, x in enumerate(first)])
    assert [node.jobs["a"].stage for node in found] == ["new", "new", "watching", "completing", "completing", "new"]
    limits = [node.jobs["a"].limit for node in found]
    assert limits[:3] == [1, 1, 1] and limits[5] == 1
    assert limits[3] == limits[4] == 0.25  # its part is 0.024 of 1.024 where 1/(2 n) is the least
    assert all(node.jobs["b"].limit == 1 for node in found)
    assert found[3].shares()["a"] == pytest.approx(0.2)


def test_where_all_are_slow_nobody_is_limited_and_passes_become_rarer_until_somebody_comes() -> None:
    values = [9.0, 5.0, *[5.0] * 5]
    found = passes([{"a": x, "b": x} | ({"c": 1.0} if k == 6 else {}) for k, x in enumerate(values)])
    assert [node.interval for node in found] == [20, 20, 20, 40, 80, 160, 20]
    assert all(job.limit == 1 for node in found[:6] for job in node.jobs.values())
    assert found[6].jobs["c"].limit == 1 and found[6].jobs["a"].limit == 1 / 6


def finished(controlled: bool) -> list[float]:
    """Return when three trainings of equal work end that come 60 s apart to a node, and whose losses fall exponentially
    with their work: those of the first two in a quarter of the last one's."""
    work, arrivals, fall, step = 200.0, (0.0, 60.0, 120.0), (15.0, 15.0, 60.0), 0.5
    done, used, ends = [0.0] * 3, [0.0] * 3, [math.inf] * 3
    node, due, since, now = Node(), 0.0, 0.0, 0.0
    while min(done) < work:
        there = [k for k in range(3) if arrivals[k] <= now and done[k] < work]
        if set(map(str, there)) != set(node.jobs) or now >= due:
            reports = {str(k): (math.exp(-done[k] / fall[k]), used[k] / max(now - since, step)) for k in there}
            node = rebalance(node, now, reports)
            used, since, due = [0.0] * 3, now, now + node.interval
        shares = node.shares() if controlled else {str(k): 1 / len(there) for k in there}
        for k in there:
            done[k] += step * shares[str(k)]
            used[k] += step * shares[str(k)]
            if done[k] >= work:
                ends[k] = now + step
        now += step
    return ends


def test_the_last_training_is_done_sooner_and_all_together_no_later() -> None:
    """On a virtual node, whose capacity is always used."""
    fair, controlled = finished(False), finished(True)
    assert controlled[2] - 120 <= 0.85 * (fair[2] - 120)
    assert max(controlled) == pytest.approx(max(fair), rel=0.01)


def test_what_makes_no_sense_is_refused() -> None:
    for options in ({"alpha": 0.0}, {"alpha": 1.0}, {"beta": 0.5}, {"interval": 0.0}):
        with pytest.raises(ClusterError):
            rebalance(Node(), 1.0, {"a": (1.0, 1.0)}, **options)
