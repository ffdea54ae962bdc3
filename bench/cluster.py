"""Time the virtual driver at the scale of published traces: Philly's 82,247 jobs, openb's tasks by each rule, and the
jobs that Gavel's authors draw.

    LACONIC_DATA=... python bench/cluster.py
    LACONIC_DATA=... python bench/cluster.py --only gavel

Philly runs on 64 hosts of 8 GPUs (load 0.73). Gavel's jobs come at four an hour to 36 GPUs of each of three types, and
the 4,000th to the 5,000th count, as in its paper; its figures are 23.49 h where speeds by type are not known and 16.82
h where they are. The seconds are of the processor, of one thread; beside them is the mean completion time, or the share
of GPUs that is taken in the end.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.packing.pack import RULES, arrivals, pack
from laconic.cluster.packing.tasks import typical
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policies.gavel import Gavel
from laconic.cluster.policies.srtf import Srtf
from laconic.cluster.policies.tiresias import Tiresias
from laconic.cluster.policy import Policy
from laconic.cluster.readers.gavel import continuous_jobs, read_gavel
from laconic.cluster.readers.openb import read_openb_hosts, read_openb_tasks
from laconic.cluster.readers.philly import read_philly
from laconic.cluster.replay import Costs, replay


def philly(made: Table, folder: Path, count: int | None) -> None:
    """Replay Philly's jobs under each policy."""
    jobs = read_philly(folder / "pollux" / "traces" / "philly.csv")[:count]
    policies: list[Policy] = [Fifo(), Fifo(True), Srtf(), Tiresias()]
    for policy in policies:
        replay(jobs[:2000], Cluster.uniform(8, 8), policy)  # compiles
        begin = time.process_time()
        outcome = replay(jobs, Cluster.uniform(64, 8), policy, Costs(restart=30.0))
        spent = time.process_time() - begin
        made.add_row(f"philly, {len(jobs)} jobs", str(policy), f"{spent:.1f}", f"{outcome.mean_completion_time:,.0f} s")


def openb(made: Table, folder: Path, seeds: int) -> None:
    """Pack openb's tasks by each rule."""
    cluster = read_openb_hosts(folder / "openb" / "openb_node_list_gpu_node.csv")
    trace = read_openb_tasks(folder / "openb" / "openb_pod_list_default.csv")
    counts = typical(Counter(task._replace(memory_mib=0) for task in trace))
    pack(cluster, trace[:10], "exact", counts, 0)  # compiles
    for rule in RULES:
        shares, spent = [], 0.0
        for seed in range(42, 42 + seeds):
            coming = arrivals(trace, 1.3 * cluster.gpus, seed)
            begin = time.process_time()
            shares.append(pack(cluster, coming, rule, counts, seed).share)
            spent += time.process_time() - begin
        made.add_row(f"openb, {seeds} seeds", rule, f"{spent / seeds:.2f}", f"{100 * sum(shares) / seeds:.2f} %")


def gavel(made: Table, folder: Path, seeds: int) -> None:
    """Let jobs come at four an hour to GPUs of three types, shared by least attained service."""
    throughputs = read_gavel(folder / "gavel" / "simulation_throughputs.json")
    cluster = Cluster(tuple(Host(f"{gpu}-{i}", 1, gpu) for gpu in ("v100", "p100", "k80") for i in range(36)))
    for aware in (False, True):
        hours, begin = [], time.process_time()
        for seed in range(seeds):
            jobs = continuous_jobs(throughputs, 4.0, 5200, seed)
            outcome = replay(jobs, cluster, Gavel(aware=aware, queue="by_type", seed=seed))
            hours.append(float(outcome.completion_times[4000:5000].mean()) / 3600)
        spent, each = (time.process_time() - begin) / seeds, ", ".join(f"{one:.2f}" for one in hours)
        name = "aware" if aware else "agnostic"
        made.add_row(f"gavel, {seeds} seeds", name, f"{spent:.1f}", f"{sum(hours) / seeds:.2f} h ({each})")


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of cluster replays.")
    parser.add_argument("--jobs", type=int, default=None, help="Philly's first jobs only (default all)")
    parser.add_argument("--seeds", type=int, default=10, help="of openb (default 10); Gavel has three at most")
    parser.add_argument("--only", choices=["philly", "openb", "gavel"], help="one of the traces (default all)")
    given = parser.parse_args()
    folder = Path(os.environ.get("LACONIC_DATA", Path(__file__).resolve().parents[1] / ".." / "shared" / "data"))
    made = Table(title="Seconds of one core")
    for heading in ("trace", "policy", "seconds", "outcome"):
        made.add_column(heading)
    if given.only in (None, "philly"):
        philly(made, folder, given.jobs)
    if given.only in (None, "openb"):
        openb(made, folder, given.seeds)
    if given.only in (None, "gavel"):
        gavel(made, folder, min(given.seeds, 3))
    Console().print(made)


if __name__ == "__main__":
    main()
