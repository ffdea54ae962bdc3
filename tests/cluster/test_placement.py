"""Gangs are placed on few hosts, and what cannot be given is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.active import Active
from laconic.cluster.decision import Changes, check
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Fixed, Job
from laconic.cluster.placement import consolidated
from laconic.cluster.room import Room
from laconic.errors import ClusterError

BUSY = Job("busy", 0.0, 1, Fixed(1.0))


def as_said(free: dict[int, list[int]], workers: int) -> list[Slot]:
    """Return the devices of a gang by the rule's words."""
    slots: list[Slot] = []
    while len(slots) < workers:
        left = workers - len(slots)
        holding = [host for host in free if len(free[host]) >= left]
        fullest = min(holding, key=lambda host: (len(free[host]), host), default=None)
        host = min(free, key=lambda host: (-len(free[host]), host)) if fullest is None else fullest
        slots += [Slot(host, device) for device in free.pop(host)[:left]]
    return sorted(slots)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
@settings(max_examples=150, deadline=None)
def test_a_gang_gets_the_fullest_host_that_holds_it_or_the_emptiest_hosts(gpus: list[int], data: st.DataObject) -> None:
    room = Room(Cluster(tuple(Host(f"host{i}", count) for i, count in enumerate(gpus))))
    lost = data.draw(st.sets(st.integers(0, len(gpus) - 1), max_size=1))
    for host in lost:
        room.lose(host)
    devices = [(host, device) for host, count in enumerate(gpus) for device in range(count)]
    taken = data.draw(st.sets(st.sampled_from(devices)))
    for host, device in taken:
        room.take(BUSY, Grant((Slot(host, device, data.draw(st.sampled_from([0.25, 1.0]))),)))
    free = {host: [d for d in range(count) if (host, d) not in taken] for host, count in enumerate(gpus)}
    free = {host: found for host, found in free.items() if host not in lost}
    count = sum(map(len, free.values()))
    assert room.gpus == count
    workers = data.draw(st.integers(1, sum(gpus)))
    grant = consolidated(room, workers)
    if workers > count:
        assert grant is None
    else:
        assert grant is not None and list(grant.slots) == as_said(free, workers)


@pytest.mark.parametrize(
    ("slots", "why"),
    [
        ([Slot(0, 2)], "does not exist"),
        ([Slot(0, -1)], "does not exist"),
        ([Slot(3, 0)], "does not exist"),
        ([Slot(2, 1)], "no 1 left"),  # the host is lost
        ([Slot(1, 0, 0.5)], "no 0.5 left"),
        ([Slot(0, 0, 1.5)], "a share is above 0 and at most 1"),
        ([Slot(0, 0), Slot(0, 0)], "a device twice"),
    ],
)
def test_devices_that_are_not_there_or_not_free_are_refused(slots: list[Slot], why: str) -> None:
    room = Room(Cluster.uniform(3, 2))
    room.take(BUSY, Grant((Slot(1, 0, 0.75),)))
    room.lose(2)
    before = room.free.copy()
    job = Job("job", 0.0, len(slots), Fixed(1.0))
    with pytest.raises(ClusterError, match=why):
        check(Changes((), ((0, Grant(tuple(slots))),), ()), {}, [job], room)
    assert (room.free == before).all()


def test_a_host_that_is_not_there_is_refused_for_jobs_that_ask_for_types_of_gpus() -> None:
    job = Job("job", 0.0, 1, Fixed(1.0), gpu_types=("v100",))
    with pytest.raises(ClusterError, match="does not exist"):
        check(Changes((), ((0, Grant((Slot(3, 0),))),), ()), {}, [job], Room(Cluster.uniform(3, 2)))


def test_what_is_free_after_changes_is_returned_and_what_is_free_now_stays() -> None:
    room, jobs = Room(Cluster.uniform(1, 2)), [BUSY, BUSY]
    held = {0: Grant((Slot(0, 0),))}
    room.take(BUSY, held[0])
    after = check(Changes((0,), ((1, Grant((Slot(0, 0, 0.5),))),), ()), held, jobs, room)
    assert after.free.tolist() == [[0.5, 1.0]] and room.free.tolist() == [[0.0, 1.0]]
    assert after.gpus == room.gpus == 1


@given(st.lists(st.integers(0, 20), unique=True), st.data())
def test_active_jobs_are_in_order_however_they_come(numbers: list[int], data: st.DataObject) -> None:
    active = Active()
    for number in numbers:
        active.add(number)
    gone = data.draw(st.sets(st.sampled_from(numbers))) if numbers else set()
    for number in gone:
        active.remove(number)
    left = sorted(set(numbers) - gone)
    assert list(active) == active.as_array().tolist() == left and len(active) == len(left)
    assert all((number in active) == (number in left) for number in range(21))
