"""The output of `laconic cluster`: policies, completion times, and what became of a job."""

from __future__ import annotations

import csv
import inspect
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.outcome import PARTS, Outcome
from laconic.cluster.policy import Policy
from laconic.cluster.readers.jobs_file import read_jobs
from laconic.cluster.readers.philly import read_philly
from laconic.cluster.replay import Costs, replay
from laconic.errors import ClusterError
from laconic.language.grammar import parse_policy
from laconic.registry import entries


def print_policies() -> None:
    """Print the policies and what each does."""
    table = Table("policy", "what it does", "paper", box=box.MARKDOWN)
    for entry in entries("cluster"):
        if entry.kind == "word":
            table.add_row(entry.name, inspect.cleandoc(entry.doc).split("\n\n")[0].replace("\n", " "), entry.paper)
    Console(width=max(140, Console().width)).print(table)


def print_replay(
    trace: Path, policy: str, hosts: int, gpus: int, tenant: str | None, restart: float, out: Path | None
) -> None:
    """Replay a trace under one policy, and print and write what came of it."""
    outcome = _replayed(trace, parse_policy(policy), hosts, gpus, tenant, restart)
    _print_table([(policy, outcome)], hosts * gpus)
    _print_parts(outcome)
    if out is not None:
        _write_jobs(outcome, out)


def print_run(
    jobs: Path, folder: Path, policy: str, hosts: int, gpus: int, address: str | None, save_every: float
) -> None:
    """Run jobs on a Ray cluster, and print what came of it."""
    decides, pairs = parse_policy(policy), read_jobs(jobs)
    try:
        import ray

        from laconic.cluster.ray import nodes
        from laconic.cluster.ray.local import local_nodes
        from laconic.cluster.ray.run import run
    except ImportError as error:
        raise ClusterError("Ray is not installed, which runs the jobs: pip install 'laconic[cluster]'") from error
    if address is None:
        cluster = Cluster.uniform(hosts, gpus)
        with local_nodes(cluster):
            outcome = run(pairs, decides, folder, cluster, save_every)
    else:
        with ray.init(address=address, log_to_driver=False):
            cluster = nodes.cluster()
            outcome = run(pairs, decides, folder, cluster, save_every)
    _print_table([(policy, outcome)], cluster.gpus)
    _print_parts(outcome)


def print_comparison(
    trace: Path, policies: Sequence[str], hosts: int, gpus: int, tenant: str | None, restart: float
) -> None:
    """Replay a trace under several policies, and print their completion times."""
    parsed = [parse_policy(text) for text in policies]  # a wrong one is refused before anything takes long
    found = []
    console = Console(stderr=True)
    for text, policy in zip(policies, parsed, strict=True):
        with console.status(f"{text} on {trace.name}"):
            found.append((text, _replayed(trace, policy, hosts, gpus, tenant, restart)))
    _print_table(sorted(found, key=lambda one: one[1].mean_completion_time), hosts * gpus)


def _replayed(trace: Path, policy: Policy, hosts: int, gpus: int, tenant: str | None, restart: float) -> Outcome:
    jobs = jobs_that_fit(trace, hosts * gpus, tenant)
    return replay(jobs, Cluster.uniform(hosts, gpus), policy, Costs(restart=restart))


def jobs_that_fit(trace: Path, gpus: int, tenant: str | None = None) -> list[Job]:
    """Return the jobs of a table or of a file of jobs, and refuse those that ask for more GPUs than there are.

    - `trace`: a table in Philly's columns, or a TOML file with a table `job` for each.
    - `gpus`: how many there are.
    - `tenant`: whose jobs; default: everybody's.
    """
    if not trace.is_file():
        raise ClusterError(f"there is no file {trace}; give a table of jobs")
    if trace.suffix == ".toml":
        jobs = [job for job, _ in read_jobs(trace) if tenant in (None, job.tenant)]
    else:
        jobs = read_philly(trace, tenant)
    if not jobs:
        raise ClusterError(f"{trace} has no jobs of {tenant}" if tenant else f"{trace} has no jobs")
    largest = max(jobs, key=lambda job: job.gpus)
    if largest.gpus > gpus:
        raise ClusterError(f"{largest.name} asks for {largest.gpus:g} GPUs of {gpus}: give more --hosts")
    return jobs


def _print_table(rows: Sequence[tuple[str, Outcome]], gpus: int) -> None:
    columns = ("policy", "mean completion", "median", "99th", "makespan", "GPUs held", "restarts a job")
    table = Table(*columns, box=box.MARKDOWN)
    for name, outcome in rows:
        times = outcome.completion_times
        table.add_row(
            name,
            *(clock(float(x)) for x in (times.mean(), *np.percentile(times, [50, 99]), outcome.makespan)),
            f"{100 * float(outcome.attained.sum()) / (gpus * outcome.makespan):.1f} %",
            f"{float(outcome.restarts.mean()):.2f}",
        )
    Console(width=max(120, Console().width)).print(table)


def _print_parts(outcome: Outcome) -> None:
    table = Table("where jobs' time goes", "share", box=box.MARKDOWN)
    whole = outcome.parts.sum()
    for name, part in zip(PARTS, outcome.parts, strict=True):
        table.add_row(name, f"{100 * float(part.sum()) / whole:.1f} %")
    Console().print(table)


def clock(seconds: float) -> str:
    """Write a time that may be of seconds or of days."""
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 3600:.2f} h"


def _write_jobs(outcome: Outcome, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("job", "arrival", "first_start", "completed", "restarts", *PARTS))
        for number, job in enumerate(outcome.jobs):
            parts = (round(float(x), 3) for x in outcome.parts[:, number])
            times = outcome.first_start[number], outcome.completed[number], outcome.restarts[number]
            writer.writerow((job.name, job.arrival, *times, *parts))
