"""The same policies on the same jobs, under the virtual clock and on a Ray cluster of this machine.

    python bench/cluster_ray.py                     # 12 jobs of 60 to 120 s under three policies: about half an hour
    python bench/cluster_ray.py --seconds 15        # the same, shorter

Jobs compute nothing: a step is a wait as long as the job's model says, so that two cores do not measure themselves.
For how long devices stand still at a start and at a later one on Ray is given to the virtual driver as its costs: there
a job that is preempted stops at once, and on Ray it computes until its heir is prepared. The downtime of a planned move
is from the last step on the old devices to the first on the new ones, by the wall clock: it is longer on a machine with
other work.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.journal import read, replayed
from laconic.cluster.outcome import Outcome
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policies.pollux import Pollux
from laconic.cluster.policies.tiresias import Tiresias
from laconic.cluster.policy import Policy
from laconic.cluster.replay import Costs, replay
from laconic.cluster.training import Application, Curve, Training

EPOCHS, TUNED, MOST_BATCH, LEAST_LOCAL, MOST_LOCAL = 10, 64, 512, 8, 256


def application(name: str, seconds: float, workers: int, cluster: Cluster) -> Application:
    """A model whose training with its own batch takes so long on so many workers of one host."""

    def step(placement: tuple[int, ...], local: np.ndarray) -> np.ndarray:
        sync = 0.0 if sum(placement) == 1 else 0.02 if len(placement) == 1 else 0.05
        return np.stack([local, 0.02 + 0.003 * local + sync, np.full_like(local, sync)], axis=1)

    most = cluster.hosts[0].gpus
    local = np.array([1.0, MOST_BATCH])
    rings = {(one,) for one in range(1, most + 1)} | {
        tuple(sorted((a, b))) for a in range(1, most + 1) for b in range(1, most + 1)
    }
    placements = {ring: step(ring, local) for ring in rings}
    own = step((workers,), np.array([TUNED / workers]))[0, 1]
    ends = np.linspace(seconds / own / EPOCHS, seconds / own, EPOCHS)
    curves = {
        batch: Curve(ends, ends * TUNED / batch, np.full(EPOCHS, 1.0), np.full(EPOCHS, 8.0))
        for batch in (TUNED, MOST_BATCH)
    }
    return Application(name, curves, placements, np.zeros((0, 5)), EPOCHS, LEAST_LOCAL, MOST_LOCAL)


def workload(count: int, seconds: float, seed: int, cluster: Cluster) -> list[Job]:
    """Jobs of one to two times so many seconds on one to three GPUs, some of which can have more."""
    drawn, made, arrival = random.Random(seed), list[Job](), 0.0
    for i in range(count):
        gpus = drawn.choice([1, 1, 1, 2, 2, 3])
        model = application(f"model{i}", drawn.uniform(1, 2) * seconds, min(gpus, cluster.hosts[0].gpus), cluster)
        made.append(
            Job(f"job{i}", arrival, gpus, Training(model, TUNED, keeps_batch=False), least=1, most=cluster.gpus)
        )
        arrival += drawn.expovariate(1 / (0.3 * seconds))
    return made


def costs_of(entries: list[dict[str, Any]], restarts: int) -> Costs:
    """For how long devices that were free already stood still, by first starts and by later ones that were decided. One
    that was withdrawn before its gang was prepared cost nothing: the old gang computed on."""
    first, later, seen = 0.0, 0.0, set[int]()
    for entry in entries:
        if entry["kind"] == "begun" and entry["job"] in seen:
            later += entry["idle"]
        elif entry["kind"] == "begun":
            first += entry["idle"]
            seen.add(entry["job"])
    return Costs(first / len(seen), later / max(restarts, 1))


def downtimes(entries: list[dict[str, Any]]) -> list[float]:
    """Of moves for which the new gang was made while the old one computed."""
    begun = [entry for entry in entries if entry["kind"] == "begun" and entry["gap"] is not None]
    return [entry["gap"] for entry in begun if entry["gap"] <= entry["waited"]]


def lost_work(entries: list[dict[str, Any]]) -> float:
    """What jobs had done when they were stopped and had not when they went on."""
    stopped, lost = dict[int, float](), 0.0
    for entry in entries:
        if entry["kind"] == "ended" and entry["why"] == "stopped":
            stopped[entry["job"]] = entry["done"]
        elif entry["kind"] == "begun" and entry["job"] in stopped:
            lost += stopped.pop(entry["job"]) - entry["done"]
    return lost


def on_ray(jobs: list[Job], cluster: Cluster, policy: Policy, folder: Path) -> Outcome:
    from laconic.cluster.ray.run import run
    from laconic.cluster.ray.work import Task

    waits = [(job, Task("laconic.cluster.ray.waits:Waits", {"progress": job.progress})) for job in jobs]
    return run(waits, policy, folder, cluster, save_every=10.0)


def compared(made: Table, name: str, jobs: list[Job], cluster: Cluster, policy: Policy, folder: Path) -> None:
    real = on_ray(jobs, cluster, policy, folder)
    entries = read(folder / "journal.jsonl")
    costs = costs_of(entries, int(real.restarts.sum()))
    virtual = replay(jobs, cluster, policy, costs)
    again = list(replayed(entries, real.jobs, cluster, policy))
    gaps, off = downtimes(entries), real.mean_completion_time / virtual.mean_completion_time - 1
    made.add_row(
        name,
        f"{virtual.mean_completion_time:.1f} s",
        f"{real.mean_completion_time:.1f} s",
        f"{100 * off:+.1f} %",
        f"{sum(one.is_equal for one in again)} of {len(again)}",
        f"{int(virtual.restarts.sum())} and {int(real.restarts.sum())}",
        f"{costs.start:.1f} and {costs.restart:.1f} s",
        f"{len(gaps)}: {np.median(gaps):.1f}, at most {max(gaps):.1f} s" if gaps else "none",
        f"{lost_work(entries):g}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Policies on Ray against the virtual driver.")
    parser.add_argument("--jobs", type=int, default=12, help="how many (default 12)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the shortest job (default 60)")
    parser.add_argument("--hosts", type=int, default=2, help="nodes of this machine (default 2)")
    parser.add_argument("--gpus", type=int, default=2, help="devices of each (default 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the jobs (default 0)")
    parser.add_argument("--only", help="a policy: fifo, tiresias or pollux")
    arguments = parser.parse_args()
    for name, value in {"AUTH_MODE": "disabled", "USAGE_STATS_ENABLED": "0", "raylet_start_wait_time_s": "240"}.items():
        os.environ.setdefault(f"RAY_{name}", value)
    from laconic.cluster.ray.local import local_nodes

    cluster = Cluster.uniform(arguments.hosts, arguments.gpus)
    jobs = workload(arguments.jobs, arguments.seconds, arguments.seed, cluster)
    policies: dict[str, Policy] = {
        "fifo": Fifo(),
        "tiresias": Tiresias(thresholds=(arguments.seconds,)),
        "pollux": Pollux(interval=arguments.seconds / 3, restart=arguments.seconds / 12, generations=20),
    }
    columns = ("mean completion, virtual", "on Ray", "difference", "decisions that replay", "restarts of both")
    measured = ("start and restart on Ray", "planned moves and their downtime", "work lost by them")
    made = Table("policy", *columns, *measured)
    with tempfile.TemporaryDirectory() as folder, local_nodes(cluster):
        for name, policy in policies.items():
            if arguments.only in (None, name):
                compared(made, name, jobs, cluster, policy, Path(folder) / name)
                Console(width=200).print(made)


if __name__ == "__main__":
    main()
