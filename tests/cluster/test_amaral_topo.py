"""Topology-aware placement: pairs on one socket, mappings as good as exhaustive search, and less time in all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.bipartition import bipartition
from laconic.cluster.contention import OnHosts
from laconic.cluster.coupled import Coupled
from laconic.cluster.decision import Decision
from laconic.cluster.gpu_distance import distance, halves
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Fixed, Job
from laconic.cluster.outcome import Outcome
from laconic.cluster.placement import consolidated
from laconic.cluster.policies.amaral_topo import AmaralTopo
from laconic.cluster.policy import Policy
from laconic.cluster.replay import replay
from laconic.cluster.room import ALMOST, Room
from laconic.cluster.state import Event, State
from laconic.errors import ClusterError

POWER8 = (2, 2)  # two sockets with two GPUs each


def machines(count: int, tree: tuple[int, ...] = POWER8) -> Cluster:
    return Cluster(tuple(Host(f"m{i}", int(np.prod(tree)), gpu_tree=tree) for i in range(count)))


def occupied(cluster: Cluster, devices: Sequence[int]) -> tuple[Room, list[tuple[Job, Grant]]]:
    """The room of a machine on which some GPUs are in use, and who uses them."""
    room, beside = Room(cluster), []
    for device in devices:
        job, grant = Job(f"other{device}", 0.0, 1, Coupled(1.0), kind="other"), Grant((Slot(0, device),))
        room.take(job, grant)
        beside.append((job, grant))
    return room, beside


def test_distances_double_with_every_level() -> None:
    cluster = Cluster(
        (
            Host("a", 8, rack="r", gpu_tree=(2, 2, 2)),
            Host("b", 2, rack="r", gpu_tree=(2,)),
            Host("c", 2, rack="s", gpu_tree=(2,)),
        )
    )
    far = [distance(cluster, (0, 0), other) for other in ((0, 0), (0, 1), (0, 2), (0, 4), (1, 0), (2, 1))]
    assert far == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert distance(cluster, (1, 0), (1, 1)) == 1.0
    assert halves(cluster, [(0, 1), (0, 2), (0, 3)]) == ([(0, 1)], [(0, 2), (0, 3)])
    with pytest.raises(ClusterError, match="tree of 4"):
        Host("d", 8, gpu_tree=(2, 2))


@given(st.integers(0, 10_000), st.integers(2, 8))
@settings(max_examples=60, deadline=None)
def test_cuts_are_of_the_size_asked_for_and_no_swap_makes_them_lighter(seed: int, count: int) -> None:
    draws = np.random.default_rng(seed)
    weights = np.triu(draws.random((count, count)), 1)
    weights += weights.T
    size = int(draws.integers(0, count + 1))
    one, other = bipartition(weights, range(count), size)
    assert len(one) == size and sorted(one + other) == list(range(count))
    cut = weights[np.ix_(one, other)].sum()
    for a, b in itertools.product(one, other):
        x, y = [n for n in one if n != a] + [b], [n for n in other if n != b] + [a]
        assert weights[np.ix_(x, y)].sum() >= cut - 1e-9


@pytest.mark.technique("amaral_topo", check=1)
@pytest.mark.parametrize("devices", [d for n in range(3) for d in itertools.combinations(range(4), n)])
@pytest.mark.parametrize("messages", [0.3, 0.9])
def test_a_communicating_pair_is_on_one_socket_whenever_one_is_free(devices: tuple[int, ...], messages: float) -> None:
    room, beside = occupied(machines(1), devices)
    job = Job("pair", 0.0, 2, Coupled(10.0, messages, slowdowns={"other": 0.3}))
    _, grant = AmaralTopo().best(job, room, beside)
    free = [device for device in range(4) if device not in devices]
    if {0, 1} <= set(free) or {2, 3} <= set(free):
        assert len({slot.device // 2 for slot in grant.slots}) == 1


def test_utility_weighs_ways_neighbours_and_what_is_left() -> None:
    room, _ = occupied(machines(2), [0])
    noisy = Job("noisy", 0.0, 1, Coupled(1.0, slowdowns={"": 0.5}), kind="noisy")
    beside = [(noisy, Grant((Slot(0, 0),)))]
    job = Job("job", 0.0, 2, Coupled(10.0, 0.5, slowdowns={"noisy": 0.3}))
    value = AmaralTopo(communicating=(1.0, 2.0, 4.0)).utility
    # across the sockets of a machine: 2 of 1 to 4; slow-downs of 0.3 and 0.5; the one GPU that is left is stranded
    assert value(job, Grant((Slot(0, 1), Slot(0, 3))), room, beside) == pytest.approx(1 - (1 / 3 + 2 * 0.4 + 4) / 7)
    assert value(job, Grant((Slot(0, 2), Slot(0, 3))), room, beside) == pytest.approx(1 - (2 * 0.4 + 4) / 7)
    assert value(job, Grant((Slot(1, 0), Slot(1, 1))), room, beside) == 1.0
    assert value(job, Grant((Slot(0, 1), Slot(1, 0))), room, beside) == pytest.approx(1 - (1 + 2 * 0.4 + 4 * 1 / 5) / 7)
    idle = Job("idle", 0.0, 2, Coupled(10.0, 0.1, slowdowns={"noisy": 0.3}))
    other = AmaralTopo(computing=(0.0, 1.0, 1.0)).utility(idle, Grant((Slot(0, 1), Slot(0, 3))), room, beside)
    assert other == pytest.approx(1 - 1.4 / 2)


def exhaustive(policy: AmaralTopo, job: Job, room: Room, beside: Sequence[tuple[Job, Grant]]) -> float:
    """The utility of the best of all mappings: of those on the same GPUs, that with the shortest ways."""
    free = [(0, int(device)) for device in np.flatnonzero(room.free[0] >= ALMOST)]
    far = np.array([[distance(room.cluster, one, other) for other in free] for one in free])
    assert isinstance(job.progress, Coupled)
    weights, found = job.progress.weights(job.workers), 0.0
    for chosen in itertools.combinations(range(len(free)), job.workers):
        orders = np.array(list(itertools.permutations(chosen)))
        order = orders[(far[orders[:, :, None], orders[:, None, :]] * weights).sum(axis=(1, 2)).argmin()]
        grant = Grant(tuple(Slot(*free[place]) for place in order))
        found = max(found, policy.utility(job, grant, room, beside))
    return found


@pytest.mark.technique("amaral_topo", check=1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_mappings_are_as_good_as_exhaustive_search_in_nine_cases_of_ten(seed: int) -> None:
    draws, policy, equal, cases = np.random.default_rng(seed), AmaralTopo(), 0, 40
    trees = [(4,), (2, 2), (2, 3), (2, 4), (2, 2, 2), (4, 2), (3, 2)]
    for _ in range(cases):
        tree = trees[int(draws.integers(len(trees)))]
        cluster = machines(1, tree)
        used = draws.permutation(cluster.gpus)[: int(draws.integers(0, cluster.gpus - 1))].tolist()
        room, beside = occupied(cluster, used)
        workers = int(draws.integers(2, room.gpus + 1))
        edges = np.triu(draws.random((workers, workers)) * (draws.random((workers, workers)) < 0.7), 1)
        edges += edges.T
        messages = float(draws.choice([0.1, 0.6]))
        job = Job("job", 0.0, workers, Coupled(10.0, messages, tuple(map(tuple, edges.tolist()))))
        value, grant = policy.best(job, room, beside)
        assert value == policy.utility(job, grant, room, beside)
        best = exhaustive(policy, job, room, beside)
        assert value <= best + 1e-9
        equal += value >= best - 1e-9
    assert equal >= 0.9 * cases


def first_fit(room: Room, workers: int) -> Grant | None:
    """The first free GPUs of the first machine that has enough, else the first of all."""
    hosts = np.flatnonzero(room.whole >= workers).tolist()[:1] or range(len(room.whole))
    free = [Slot(host, int(device)) for host in hosts for device in np.flatnonzero(room.free[host] >= ALMOST)]
    return Grant(tuple(free[:workers])) if len(free) >= workers else None


@dataclass(frozen=True)
class InOrder(Policy):
    """Strict arrival order with a rule of placement that knows counts alone."""

    place: Callable[[Room, int], Grant | None] = first_fit

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        del events
        room, start = state.room.copy(), dict[int, Grant]()
        for number in state.waiting:
            grant = self.place(room, state.jobs[number].workers)
            if grant is None:
                break
            room.take(state.jobs[number], grant)
            start[number] = grant
        return Decision.changing(state.running, start), None


def mix(seed: int, count: int = 60) -> list[Job]:
    """Trainings with small batches, which send most of the time and disturb each other, and such with large ones."""
    draws, found, now = np.random.default_rng(seed), [], 0.0
    for i in range(count):
        small = bool(draws.random() < 0.5)
        slowdowns = {"small": 0.3, "large": 0.1} if small else {"small": 0.08, "large": 0.02}
        gpus = int(draws.choice([1, 2, 2, 4], p=[0.4, 0.25, 0.25, 0.1]))
        work = float(draws.uniform(100, 600))
        progress = Coupled(work, 0.4 if small else 0.05, slowdowns=slowdowns, least_utility=0.6 if small else 0.3)
        found.append(Job(f"job{i}", now, gpus, progress, kind="small" if small else "large"))
        now += float(draws.exponential(45.0))
    return found


def executed(outcome: Outcome) -> float:
    return float(outcome.parts[1:].sum())


@pytest.mark.technique("amaral_topo", check=2)
def test_a_mix_takes_a_tenth_less_time_in_all_than_with_greedy_rules() -> None:
    ours, first, best = (
        [executed(replay(mix(seed), machines(5), policy, contention=OnHosts())) for seed in range(3)]
        for policy in (AmaralTopo(), InOrder(first_fit), InOrder(consolidated))
    )
    for greedy in (first, best):
        assert sum(greedy) >= 1.1 * sum(ours)
        assert all(theirs > 1.05 * own for theirs, own in zip(greedy, ours, strict=True))


def test_who_asks_for_more_than_there_is_waits_and_others_pass() -> None:
    split = [Job(f"one{i}", 0.0, 1, Fixed(50.0 if i in (0, 2) else 10.0)) for i in range(4)]
    pair = Job("pair", 11.0, 2, Coupled(10.0, 0.5, least_utility=0.7))
    small = Job("small", 12.0, 1, Fixed(100.0))
    outcome = replay([*split, pair, small], machines(1), AmaralTopo(), contention=OnHosts())
    assert outcome.first_start.tolist() == [0.0, 0.0, 0.0, 0.0, 50.0, 12.0]
    at_once = replay([*split, pair, small], machines(1), AmaralTopo(postpone=False), contention=OnHosts())
    assert at_once.first_start[4] == 11.0 and at_once.completed[4] == 11.0 + 15.0  # across sockets: 0.5 + 0.5 * 2
    never = Job("never", 0.0, 3, Coupled(10.0, 0.5, least_utility=1.0))
    assert replay([never], machines(1), AmaralTopo(), contention=OnHosts()).first_start[0] == 0.0


def test_jobs_on_one_host_slow_each_other_down_only_while_both_compute() -> None:
    jobs = [
        Job("long", 0.0, 1, Coupled(100.0, slowdowns={"short": 1.0}), kind="long"),
        Job("short", 10.0, 1, Coupled(20.0, slowdowns={"long": 0.25}), kind="short"),
        Job("elsewhere", 0.0, 4, Coupled(50.0, 0.5, slowdowns={"short": 1.0})),
    ]
    outcome = replay(jobs, machines(2), AmaralTopo(postpone=False), contention=OnHosts())
    # 25 s beside each other: the long one does half as much in them
    assert outcome.completed[[0, 2]].tolist() == [112.5, 35.0]
    np.testing.assert_allclose(outcome.parts.sum(axis=0), outcome.completion_times)
    assert outcome.parts[3, 1] / (outcome.parts[2, 1] + outcome.parts[3, 1]) == pytest.approx(5 / 8)
