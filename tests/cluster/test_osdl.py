"""OSDL: slices of optical circuits that nobody shares, and jobs across racks that are done sooner by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.decision import Changes, Decision, check
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Fixed, Job
from laconic.cluster.policies.osdl import Osdl
from laconic.cluster.policy import Policy
from laconic.cluster.racks import tree_of_racks
from laconic.cluster.replay import replay
from laconic.cluster.room import Room
from laconic.cluster.sending import OnLinks, Sending
from laconic.cluster.state import Event, State
from laconic.errors import ClusterError


def racks(count: int = 4, hosts: int = 2, gpus: int = 4, ports: int = 2) -> Cluster:
    there = tuple(Host(f"r{r}h{h}", gpus, rack=f"r{r}") for r in range(count) for h in range(hosts))
    return Cluster(there, tree_of_racks(there, 25e9, oversubscribed=8.0), ports, 100e9)


def spanning(seed: int, count: int = 30, patterns: Sequence[str] = ("ring",), gap: float = 60.0) -> list[Job]:
    """Jobs of which many do not fit into a rack of eight GPUs."""
    draws, found, now = np.random.default_rng(seed), [], 0.0
    for i in range(count):
        workers, pattern = int(draws.choice([2, 5, 10, 12, 20])), str(draws.choice(patterns))
        steps, compute, nbytes = draws.integers(50, 300), draws.uniform(0.2, 0.5), draws.uniform(1e8, 6e8)
        found.append(Job(f"job{i}", now, workers, Sending(float(steps), float(compute), float(nbytes), pattern)))
        now += float(draws.exponential(gap))
    return found


@dataclass(frozen=True)
class Watched(Osdl):
    """OSDL, each of whose decisions is looked at."""

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        decision, memory = super().decide(state, events, memory)
        used: dict[str, int] = {}
        for number, grant in decision.grants.items():
            there = [state.cluster.hosts[slot.host].rack for slot in grant.slots]
            progress = state.jobs[number].progress
            assert isinstance(progress, Sending)
            other = there[1:] + there[:1] if progress.pattern == "ring" else there[:1] * len(there)
            needed = {frozenset(pair) for pair in zip(there, other, strict=True) if len(set(pair)) == 2}
            if grant.circuits:
                assert {frozenset(circuit) for circuit in grant.circuits} == needed
                assert len(grant.circuits) == len(needed)
            for rack in (rack for circuit in grant.circuits for rack in circuit):
                used[rack] = used.get(rack, 0) + 1
        assert max(used.values(), default=0) <= state.cluster.circuit_ports
        return decision, memory


@pytest.mark.technique("osdl", check=1)
@given(st.integers(0, 10_000), st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_a_port_has_one_circuit_and_circuits_are_what_the_job_sends_along(seed: int, ports: int) -> None:
    jobs = spanning(seed, 14, ("ring", "star"), gap=5.0)
    outcome = replay(jobs, racks(ports=ports), Watched(), contention=OnLinks(), keep_log=True)
    assert (outcome.completed > 0).all()
    if ports == 4:
        assert any(grant.circuits for entry in outcome.log for _, grant in entry.changes.start)


@dataclass(frozen=True)
class PacketOnly(Policy):
    """In the order of arrivals, whoever fits: in the fullest rack that holds a job, else rack by rack, the emptiest
    first; in a rack the fullest host that holds the rest, else the emptiest."""

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        del events
        free, start = [np.flatnonzero(row > 0.5).tolist() for row in state.room.free], dict[int, Grant]()
        names = [host.rack for host in state.cluster.hosts]
        for number in state.waiting:
            left = state.jobs[number].workers
            if left > sum(map(len, free)):
                continue
            sums = {
                rack: sum(len(free[h]) for h, name in enumerate(names) if name == rack) for rack in dict.fromkeys(names)
            }
            one = [rack for rack in sums if sums[rack] >= left]
            order = [min(one, key=lambda rack: sums[rack])] if one else sorted(sums, key=lambda rack: -sums[rack])
            slots = []
            for rack in order:
                hosts = [h for h, name in enumerate(names) if name == rack]
                part = []
                while left and any(free[h] for h in hosts):
                    holds = [h for h in hosts if len(free[h]) >= left]
                    host = min(holds, key=lambda h: len(free[h])) if holds else max(hosts, key=lambda h: len(free[h]))
                    part += [Slot(host, device) for device in free[host][:left]]
                    free[host], left = free[host][left:], left - min(left, len(free[host]))
                slots += sorted(part)
            start[number] = Grant(tuple(slots))
        return Decision.changing(state.running, start), None


@pytest.mark.technique("osdl", check=1)
@pytest.mark.parametrize("seed", range(3))
def test_without_ports_it_is_the_scheduler_of_packets_alone(seed: int) -> None:
    jobs = spanning(seed, patterns=("ring", "star"))
    ours, plain = (
        replay(jobs, racks(ports=0), policy, contention=OnLinks(), keep_log=True) for policy in (Osdl(), PacketOnly())
    )
    assert [entry.changes for entry in ours.log] == [entry.changes for entry in plain.log]
    assert ours.completed.tolist() == plain.completed.tolist()


@pytest.mark.technique("osdl", check=2)
@pytest.mark.parametrize("seed", range(3))
def test_jobs_across_racks_are_done_sooner_than_over_packets(seed: int) -> None:
    jobs = spanning(seed)
    sliced = replay(jobs, racks(), Osdl(), contention=OnLinks())
    packets = replay(jobs, racks(), PacketOnly(), contention=OnLinks())
    assert packets.mean_completion_time >= 1.2 * sliced.mean_completion_time


def test_a_job_waits_for_ports_only_where_that_pays() -> None:
    cluster = racks(count=3, ports=1)
    first = Job("first", 0.0, 10, Sending(100.0, 1.0, 1e9))
    for steps, waits in ((400.0, True), (3.0, False)):
        second = Job("second", 1.0, 12, Sending(steps, 1.0, 10e9))
        outcome = replay([first, second], cluster, Osdl(), contention=OnLinks(), keep_log=True)
        assert outcome.log[0].changes.start[0][1].circuits == (("r0", "r1"),)
        assert outcome.first_start[1] == (outcome.completed[0] if waits else 1.0)
        assert bool(outcome.log[1].changes.start[0][1].circuits) == waits
        assert replay([first, second], cluster, Osdl(patience=100.0)).first_start[1] == 1.0


def test_a_circuit_carries_what_goes_between_its_racks_and_no_other_link_does() -> None:
    cluster = racks(count=2, hosts=1, gpus=2)
    grant = Grant((Slot(0, 0), Slot(1, 0)))
    progress = Sending(1.0, 1.0, 25e9)
    assert progress.seconds(grant, cluster) == (1.0, pytest.approx(8 * 25e9 / (25e9 / 8)))
    sliced = replace(grant, circuits=(("r0", "r1"),))
    assert progress.seconds(sliced, cluster) == (
        1.0,
        pytest.approx(8.0),
    )  # its hosts' links are slower than the circuit
    assert progress.seconds(sliced, replace(cluster, circuit_bits_per_second=10e9)) == (1.0, pytest.approx(20.0))
    assert progress.loads(sliced, cluster).sum() == 4 * 25e9


def test_circuits_without_ports_are_refused_and_given_back() -> None:
    cluster, jobs = racks(ports=1), [Job(f"job{i}", 0.0, 2, Fixed(1.0)) for i in range(2)]
    room = Room(cluster)
    grants = [Grant((Slot(0, i), Slot(2, i)), circuits=(("r0", "r1"),)) for i in range(2)]
    room.take(jobs[0], grants[0])
    assert (room.ports["r0"], room.ports["r1"], room.ports["r2"]) == (0, 0, 1)
    with pytest.raises(ClusterError, match='rack "r0" has no optical port left for job1'):
        check(Changes((), ((1, grants[1]),), ()), {0: grants[0]}, jobs, room)
    check(Changes((0,), ((1, grants[1]),), ()), {0: grants[0]}, jobs, room)
    with pytest.raises(ClusterError, match="not in both"):
        check(Changes((), ((1, replace(grants[1], circuits=(("r0", "r2"),))),), ()), {}, jobs, Room(cluster))
    room.give(jobs[0], grants[0])
    assert set(room.ports.values()) == {1}
