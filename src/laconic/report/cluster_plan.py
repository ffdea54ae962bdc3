"""The output of `laconic cluster plan`: how many hosts jobs need to be done in time, under each policy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from laconic.cluster.replay import Costs
from laconic.cluster.sizing import Target, fewest_hosts
from laconic.errors import ClusterError
from laconic.language.grammar import parse_policy
from laconic.report.cluster import clock, jobs_that_fit


def print_plan(
    trace: Path,
    mean: float | None,
    slowest: float | None,
    policies: Sequence[str],
    gpus: int,
    tenant: str | None,
    restart: float,
) -> None:
    """Print the fewest hosts that each policy needs, those with the fewest first."""
    parsed = [parse_policy(text) for text in policies]  # a wrong one is refused before anything takes long
    if mean is None and slowest is None:
        raise ClusterError("nothing is asked for; give --mean or --slowest, in seconds")
    jobs, target, rows = jobs_that_fit(trace, sys.maxsize, tenant), Target(mean, slowest), []
    with Console(stderr=True).status("") as status:
        for text, policy in zip(policies, parsed, strict=True):

            def tell(hosts: int, text: str = text) -> None:
                status.update(f"{text} on {hosts} hosts of {gpus} GPUs")

            rows.append((text, fewest_hosts(jobs, gpus, policy, target, Costs(restart=restart), tell)))
    table = Table("policy", "hosts", "GPUs", "mean completion", "99th", "GPUs held", box=box.MARKDOWN)
    for text, sized in sorted(rows, key=lambda row: (not row[1].is_met, row[1].hosts)):
        times, whole = sized.outcome.completion_times, sized.hosts * gpus * sized.outcome.makespan
        numbers = (str(sized.hosts), str(sized.hosts * gpus)) if sized.is_met else ("no number does", "")
        table.add_row(
            text,
            *numbers,
            clock(float(times.mean())),
            clock(float(np.percentile(times, 99))),
            f"{100 * float(sized.outcome.attained.sum()) / whole:.1f} %",
        )
    Console(width=max(120, Console().width)).print(table)
