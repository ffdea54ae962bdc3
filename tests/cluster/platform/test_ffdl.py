"""FfDL: jobs are deployed whole or not at all whatever crashes, gangs do not block others, and packing queues less."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Fixed, Job
from laconic.cluster.platform.lifecycle import Platform, Stage
from laconic.cluster.policies.ffdl import Ffdl
from laconic.cluster.replay import Costs, replay
from laconic.cluster.room import Room
from laconic.errors import ClusterError


def settle(platform: Platform, rng: np.random.Generator, crashes: int, failures: int, halts: int = 0) -> None:
    """Let components act in a random order, with so many crashes, failed parts and halted jobs at random moments, until
    nothing can act any more. After each step, look at what must hold."""
    saved = dict.fromkeys(platform.store, 0)
    for step in range(100_000):
        idle = True
        for component in rng.permutation(platform.components).tolist():
            if component not in platform.components:
                continue  # it has just been ended
            if step > 5 and crashes and rng.random() < 0.1:
                platform.crash(component)
                crashes, idle = crashes - 1, False
                continue
            if halts and rng.random() < 0.01:
                platform.halt(str(rng.choice(list(platform.store))))
                halts -= 1
            fails = failures > 0 and rng.random() < 0.3
            if platform.act(component, fails):
                idle = False
                failures -= fails
        held = 0
        for name, record in platform.store.items():
            learners = sum(part.startswith("learner") for part in platform.parts[name])
            held += learners
            assert record.saved >= saved[name]
            saved[name] = record.saved
            if record.stage in (Stage.DOWNLOADING, Stage.PROCESSING, Stage.STORING) and record.verdict is None:
                assert learners == record.learners
            if record.stage is Stage.QUEUED or record.stage.is_final:
                assert not platform.parts[name]
            if name in platform.done:
                assert record.saved <= platform.done[name] < record.saved + platform.interval
        assert held <= platform.gpus
        if idle:
            return
    raise AssertionError("components act for ever")


@pytest.mark.technique("ffdl", check=1)
@given(st.integers(0, 10_000), st.integers(0, 60), st.integers(0, 12), st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_every_job_ends_and_is_never_left_in_part(seed: int, crashes: int, failures: int, halts: int) -> None:
    rng = np.random.default_rng(seed)
    platform = Platform(gpus=5, retries=2, interval=4)
    works = {f"job{i}": int(rng.integers(1, 20)) for i in range(5)}
    for name, work in works.items():
        platform.submit(name, int(rng.integers(1, 6)), work)
    settle(platform, rng, crashes, failures, halts)
    for name, record in platform.store.items():
        assert record.stage.is_final and not platform.parts[name] and not record.reserved
        assert (record.stage is Stage.COMPLETED) <= (record.saved == works[name])
        assert (record.stage is Stage.FAILED) == (record.attempts > 2 and record.stage is not Stage.HALTED)
    assert platform.free == 5 and platform.components == ["manager"]


def test_what_is_deployed_by_a_dead_guardian_is_removed_before_another_try() -> None:
    platform = Platform(gpus=2)
    platform.submit("job", 2, 1)
    for _ in range(2):
        platform.act("manager")
    for _ in range(5):
        assert platform.act("guardian job")
    assert platform.parts["job"] == ["volume", "network policy", "helper", "learner 0"]
    platform.crash("guardian job")
    assert platform.components == ["manager"] and platform.act("manager")
    counts = []
    for _ in range(6):
        platform.act("guardian job")
        counts.append(len(platform.parts["job"]))
    assert counts == [4, 3, 2, 1, 0, 0] and platform.store["job"].attempts == 1
    assert platform.free == 0  # its GPUs are still kept for it
    with pytest.raises(ClusterError, match="1 to 2 GPUs"):
        platform.submit("large", 3, 1)


def test_a_crashed_learner_goes_on_from_the_last_checkpoint() -> None:
    platform = Platform(gpus=2, interval=5)
    platform.submit("job", 2, 12)
    while "learners job" not in platform.components:
        for component in platform.components:
            platform.act(component)
    while platform.done["job"] < 9:
        platform.act("learners job")
    platform.crash("learners job")
    assert platform.done["job"] == 5
    settle(platform, np.random.default_rng(0), 0, 0)
    assert platform.store["job"].stage is Stage.COMPLETED


def blocked(platform: Platform) -> tuple[int, bool]:
    """Let everybody act in turn, after the manager; return the most GPUs that were ever held by learners of a job that
    waits for others, and whether all jobs came to an end."""
    most = 0
    while platform.act("manager"):
        pass
    for _ in range(200):
        for component in platform.components:
            if component in platform.components and not platform.act(component) and component.startswith("guardian"):
                name = component.partition(" ")[2]
                if platform.store[name].stage is Stage.DEPLOYING:
                    most = max(most, sum(part.startswith("learner") for part in platform.parts[name]))
    return most, all(record.stage is Stage.COMPLETED for record in platform.store.values())


@pytest.mark.technique("ffdl", check=2)
def test_learners_hold_gpus_in_vain_only_without_gangs() -> None:
    """Two jobs of two GPUs on three: without gangs one holds a GPU and waits until the other is done. On two GPUs, or
    two jobs of three on four, each holds what the other waits for, for ever."""
    for gpus, learners, in_vain, ends in ((3, 2, 1, True), (2, 2, 1, False), (4, 3, 2, False)):
        for gang in (True, False):
            platform = Platform(gpus, gang=gang)
            platform.submit("one", learners, 3)
            platform.submit("two", learners, 3)
            assert blocked(platform) == ((0, True) if gang else (in_vain, ends))


@pytest.mark.technique("ffdl", check=3)
@pytest.mark.parametrize("seed", range(3))
def test_packing_queues_fewer_jobs_than_spreading(seed: int) -> None:
    rng, jobs, now = np.random.default_rng(seed), [], 0.0
    for i in range(200):
        jobs.append(Job(f"job{i}", now, int(rng.integers(1, 5)), Fixed(float(rng.exponential(300.0)))))
        now += float(rng.exponential(25.0))
    packed, spread = (replay(jobs, Cluster.uniform(12, 4), Ffdl(packing=packing)) for packing in (True, False))
    queued = [int((outcome.first_start > outcome.arrivals + 1e-9).sum()) for outcome in (packed, spread)]
    assert queued[0] < queued[1]
    assert packed.mean_completion_time < spread.mean_completion_time


def test_learners_have_their_gpus_on_one_host_and_start_together() -> None:
    room = Room(Cluster.uniform(3, 4))
    room.take(Job("x", 0.0, 1, Fixed(1.0)), Ffdl().place(room, 1, 0))  # type: ignore[arg-type]
    used = int(np.flatnonzero(room.whole == 3)[0])
    grant = Ffdl().place(room, 6, 1)
    assert grant is not None and sorted(count for _, count in grant.by_host) in ([2, 4], [4, 2])
    assert (used, 2) in grant.by_host  # the rest of it goes where somebody is
    assert Ffdl().place(room, 12, 1) is None
    free = Ffdl(packing=False).place(room, 2, 1)
    assert free is not None and free.by_host[0][0] != used


def test_who_is_within_its_quota_takes_back_what_others_borrow_and_no_more() -> None:
    jobs = [Job(f"a{i}", float(i), 2, Fixed(100.0), "a") for i in range(4)] + [Job("b", 10.0, 3, Fixed(5.0), "b")]
    outcome = replay(jobs, Cluster.uniform(2, 4), Ffdl(quotas=(4, 4)), Costs(restart=1.0), keep_log=True)
    assert outcome.first_start[4] == 10.0 and outcome.restarts.tolist() == [0, 0, 1, 1, 0]
    beyond = replay([*jobs[:4], Job("b", 10.0, 5, Fixed(5.0), "b")], Cluster.uniform(2, 4), Ffdl(quotas=(4, 4)))
    assert beyond.restarts.sum() == 0 and beyond.first_start[4] >= 100.0
