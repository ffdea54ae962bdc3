"""SWARM's wiring and rebalancing as functions of plain values."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from laconic.errors import LaconicError
from laconic.parallel.elastic.swarm.rebalance import Move, Report, rebalance
from laconic.parallel.elastic.swarm.simulate import simulate_swarm
from laconic.parallel.elastic.swarm.wiring import BACKWARD_TASKS, Wiring, ban, choose, join, leave, measure


def of_speeds(*speeds: float, seed: int = 0) -> Wiring:
    wiring = Wiring({}, seed=seed)
    for number, speed in enumerate(speeds):
        wiring = join(wiring, number, speed)
    return wiring


@pytest.mark.technique("swarm", check=1)
@pytest.mark.parametrize("backward", [1.0, BACKWARD_TASKS])
@pytest.mark.parametrize("seed", [0, 1])
def test_peers_share_tasks_by_their_speeds(backward: float, seed: int) -> None:
    wiring, tasks = of_speeds(1, 2, 4, seed=seed), dict.fromkeys(range(3), 0.0)
    for call in range(1000):
        size = backward if call % 3 == 0 else 1.0
        peer, wiring = choose(wiring, size, 0.0)
        tasks[peer] += size
    assert tasks[1] / tasks[0] == pytest.approx(2, rel=0.05)
    assert tasks[2] / tasks[0] == pytest.approx(4, rel=0.05)


def test_calls_are_interleaved_and_a_backward_counts_for_two_and_a_half() -> None:
    wiring, order = of_speeds(1, 1, seed=3), []
    for _ in range(6):
        peer, wiring = choose(wiring, 1.0, 0.0)
        order.append(peer)
    assert all(order[k] != order[k + 1] for k in (0, 2, 4))
    peer, wiring = choose(of_speeds(1, 1), BACKWARD_TASKS, 0.0)
    following = []
    for _ in range(3):
        other, wiring = choose(wiring, 1.0, 0.0)
        following.append(other)
    assert following[:2] == [1 - peer] * 2


def test_a_banned_peer_gets_no_call_until_its_announcement_expires() -> None:
    wiring = ban(of_speeds(1, 1), 0, 30.0)
    assert choose(wiring, 1.0, 29.0)[0] == 1
    wiring = ban(wiring, 1, 60.0)
    with pytest.raises(LaconicError, match="no peer serves this stage"):
        choose(wiring, 1.0, 29.0)
    assert choose(wiring, 1.0, 30.0)[0] == 0


def test_a_new_peer_enters_at_the_minimum_and_speeds_follow_measurements() -> None:
    wiring = of_speeds(1, 1)
    for _ in range(100):
        _, wiring = choose(wiring, 1.0, 0.0)
    wiring, counts = join(wiring, 9, 1.0), Counter[int]()
    for _ in range(30):
        peer, wiring = choose(wiring, 1.0, 0.0)
        counts[peer] += 1
    assert counts == {0: 10, 1: 10, 9: 10}
    for _ in range(60):
        wiring = measure(wiring, 9, 1.0, 0.25)
    assert wiring.peers[9].tasks_per_second == pytest.approx(4, rel=0.01)
    assert set(leave(wiring, 9).peers) == {0, 1}


@pytest.mark.technique("swarm", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_rebalancing_after_a_speed_change_reaches_the_best_assignment(seed: int) -> None:
    """Nine peers in three stages; then all peers of the last stage become three times slower."""
    stage_of = {number: number // 3 for number in range(9)}
    speeds = {number: 3.0 if number < 6 else 1.0 for number in range(9)}

    def settled(places: dict[int, int], rebalances: bool) -> float:
        run = simulate_swarm(places, speeds, 40, 20.0, 36, rebalances, seed)
        return sum(run.finished[20:]) / 400.0

    capacity = {
        way: min(sum(speeds[k] for k in range(9) if way[k] == stage) for stage in range(3))
        for way in product(range(3), repeat=9)
        if len(set(way)) == 3
    }
    best = max(capacity, key=lambda way: capacity[way])
    still = settled(stage_of, rebalances=False)
    assert settled(stage_of, rebalances=True) >= 0.9 * settled(dict(enumerate(best)), rebalances=False)
    assert still < 0.7 * settled(stage_of, rebalances=True)


def test_a_move_goes_from_the_shortest_queue_to_the_most_loaded_stage() -> None:
    stages = {
        0: {0: Report(3, 1.0), 1: Report(2, 1.0), 2: Report(2, 1.0)},
        1: {3: Report(9, 1.0)},
        2: {4: Report(1, 1.0), 5: Report(0, 1.0), 6: Report(1, 1.0)},
    }
    assert rebalance(stages) == Move(5, 2, 1)
    assert rebalance({0: {0: Report(0, 1.0)}, 1: {1: Report(9, 1.0)}}) is None
    assert rebalance({0: {0: Report(0, 1.0), 1: Report(0, 1.0)}, 1: {2: Report(9, 1.9)}}) is None
