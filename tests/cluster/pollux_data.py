"""Pollux's workloads under a policy, and what its authors' simulator made of them."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np

from laconic.cluster.hosts import Cluster
from laconic.cluster.outcome import Outcome
from laconic.cluster.policy import Policy
from laconic.cluster.readers.pollux import Adapts, read_workload
from laconic.cluster.replay import Costs, replay
from tests.data import folder_of

ALL = range(1, 9)


@functools.cache
def run(policy: Policy, workload: int, adapts: Adapts = "nothing", load: str = "1.0") -> Outcome:
    """A workload on 16 hosts of 4 GPUs, with 30 s for every start."""
    folder = folder_of("pollux")
    path = folder / ("workloads" if load == "1.0" else f"workloads-{load}") / f"workload-{workload}.csv"
    jobs = read_workload(path, folder / "traces", adapts)
    return replay(jobs, Cluster.uniform(16, 4), policy, Costs(30.0, 30.0))


def published(policy: str, load: str = "1.0") -> dict[str, Any]:
    """The authors' results: `jcts` of every job, `avgs` of the workloads, and their `mean`."""
    found: dict[str, Any] = json.loads((folder_of("pollux") / "results" / f"{policy}-{load}.json").read_text())
    return found


def published_times(policy: str, workload: int, outcome: Outcome, load: str = "1.0") -> np.ndarray:
    """The authors' completion time of every job of an outcome."""
    times = published(policy, load)["jcts"][f"workload-{workload}"]
    return np.array([times[job.name] for job in outcome.jobs])
