"""Time the virtual driver at the scale of published traces: Philly's 82,247 jobs, and openb's tasks by each rule.

    LACONIC_DATA=... python bench/cluster.py

Philly runs on 64 hosts of 8 GPUs (load 0.73). The seconds are of the processor, of one thread; beside them is the mean
completion time, or the share of GPUs that is taken in the end.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from laconic.cluster.hosts import Cluster
from laconic.cluster.packing.pack import RULES, arrivals, pack
from laconic.cluster.packing.tasks import typical
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policies.srtf import Srtf
from laconic.cluster.policies.tiresias import Tiresias
from laconic.cluster.policy import Policy
from laconic.cluster.readers.openb import read_openb_hosts, read_openb_tasks
from laconic.cluster.readers.philly import read_philly
from laconic.cluster.replay import Costs, replay


def philly(made: Table, folder: Path, count: int | None) -> None:
    """Replay Philly's jobs under each policy."""
    jobs = read_philly(folder / "pollux" / "traces" / "philly.csv")[:count]
    policies: list[Policy] = [Fifo(), Fifo(True), Srtf(), Tiresias()]
    for policy in policies:
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of cluster replays.")
    parser.add_argument("--jobs", type=int, default=None, help="Philly's first jobs only (default all)")
    parser.add_argument("--seeds", type=int, default=10, help="of openb (default 10)")
    given = parser.parse_args()
    folder = Path(os.environ.get("LACONIC_DATA", Path(__file__).resolve().parents[1] / ".." / "shared" / "data"))
    made = Table(title="Seconds of one core")
    for heading in ("trace", "policy", "seconds", "outcome"):
        made.add_column(heading)
    philly(made, folder, given.jobs)
    openb(made, folder, given.seeds)
    Console().print(made)


if __name__ == "__main__":
    main()
