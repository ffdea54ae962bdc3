"""The journal of a run: replayed through the policy it gives the same decisions, and through another it does not."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Fixed, Job
from laconic.cluster.journal import Journal, read, replayed
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policies.srtf import Srtf
from laconic.cluster.policies.tiresias import Tiresias
from laconic.cluster.policy import Policy
from laconic.cluster.replay import Costs, Outage, replay
from laconic.errors import ClusterError

CLUSTER = Cluster.uniform(3, 2)
POLICIES = [
    Fifo(),
    Srtf(),
    Tiresias(thresholds=(15.0,)),
    Tiresias(thresholds=(15.0,), gittins=True, starvation=2.0),
    Tiresias(thresholds=(15.0, 40.0), interval=7.0),
]


def jobs(seed: int) -> list[Job]:
    drawn = random.Random(seed)
    made = [
        Job(f"job{i}", drawn.uniform(0, 40), drawn.choice([1, 2, 3, 5]), Fixed(drawn.uniform(1, 30))) for i in range(12)
    ]
    return sorted(made, key=lambda job: job.arrival)


def written(seed: int, policy: Policy, path: Path) -> Path:
    costs, lost = Costs(1.0, 2.5, 4.0), [Outage(1, 20.0, 33.0)]
    outcome = replay(jobs(seed), CLUSTER, policy, costs, lost, journal=Journal(path))
    assert len(read(path)) == outcome.decisions
    return path


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_journal_replayed_gives_the_same_decisions(policy: Policy, seed: int, tmp_path: Path) -> None:
    entries = read(written(seed, policy, tmp_path / "journal"))
    again = list(replayed(entries, jobs(seed), CLUSTER, policy))
    assert again and all(one.is_equal for one in again)
    for one, entry in zip(again, entries, strict=True):
        running, free = one.state.running, CLUSTER.gpus - sum(CLUSTER.hosts[host].gpus for host in one.state.room.lost)
        assert list(running) == [job for job, *_ in entry["running"]]
        assert one.state.room.gpus == free - sum(grant.gpus for grant in running.values())


def test_another_policy_decides_otherwise_upon_the_same_states(tmp_path: Path) -> None:
    entries = read(written(0, Srtf(), tmp_path / "journal"))
    others = [one for one in replayed(entries, jobs(0), CLUSTER, Tiresias(thresholds=(15.0,))) if not one.is_equal]
    assert others


def test_a_line_that_was_cut_off_is_dropped_and_the_journal_goes_on(tmp_path: Path) -> None:
    path = written(0, Fifo(), tmp_path / "journal")
    entries = read(path)
    path.write_bytes(path.read_bytes()[:-20])
    journal = Journal(path)
    assert journal.entries == entries[:-1]
    journal.write("begun", job=3, at=0.1 + 0.2)
    assert read(path) == [*entries[:-1], {"kind": "begun", "job": 3, "at": 0.1 + 0.2}]


def test_a_journal_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = written(0, Fifo(), tmp_path / "journal")
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0][:-3], *lines[1:]]))
    with pytest.raises(ClusterError, match="line 1 of"):
        read(path)


def test_what_the_books_had_is_in_the_journal(tmp_path: Path) -> None:
    entries = read(written(1, Srtf(), tmp_path / "journal"))
    last = list(replayed(entries, jobs(1), CLUSTER, Srtf()))[-1].state
    outcome = replay(jobs(1), CLUSTER, Srtf(), Costs(1.0, 2.5, 4.0), [Outage(1, 20.0, 33.0)])
    for event in entries[-1]["events"]:
        np.testing.assert_equal(last.tables.attained[event[1]], outcome.attained[event[1]])
        np.testing.assert_equal(last.tables.restarts[event[1]], outcome.restarts[event[1]])
