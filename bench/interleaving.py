"""Two jobs that share a link, started together and interleaved: what shifting their phases gains, beside the model.

    python bench/interleaving.py                # needs root, `ip` and `tc`; about two minutes
    python bench/interleaving.py --compute 0.3 --repeats 5

Two sites of two hosts each, 100 Mb/s between the sites. Each job has a worker in either site and repeats: compute (a
wait, so that two cores do not measure themselves), and an all-reduce of its vector between its two workers. In one case
both jobs begin at once, in the other the second begins later by the shift that `interleave` returns. Times are of the
slower job from the common start to its last iteration, by iteration; prices are those of `send_all` for flows that
share the link fairly.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from cases_on_links import beside_prices, measured_on_links, take_turns  # noqa: E402
from workers import PAYLOAD_SHARE  # noqa: E402

FAST, RATE, ITERATIONS, NBYTES = 1e9, 1e8, 12, 4_000_000
JOBS = ((0, 2), (1, 3))
"""The ranks of each job; ranks 0 and 1 are in one site."""
CASES = ("together", "interleaved")


def phases(compute: float) -> Any:
    """An iteration of either job alone: two workers exchange a vector, each sends one at the link's rate."""
    from laconic.cluster.flows.interleaving import Phases

    return Phases(compute, 8 * NBYTES / (RATE * PAYLOAD_SHARE))


def shift_of(case: str, compute: float) -> float:
    """Return by how much the second job begins later."""
    from laconic.cluster.flows.interleaving import interleave

    return 0.0 if case == "together" else interleave([phases(compute)] * 2).shifts[1]


def work(todo: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    from laconic.real.connect import connect

    worker = connect()
    groups = [dist.new_group(list(ranks)) for ranks in JOBS]
    number = next(k for k, ranks in enumerate(JOBS) if worker.rank in ranks)
    x = torch.zeros(NBYTES // 4)

    def run(case: str) -> None:
        time.sleep(number * shift_of(case, todo["compute"]))
        for _ in range(ITERATIONS):
            time.sleep(todo["compute"])
            dist.all_reduce(x, group=groups[number])

    take_turns(worker, {case: lambda case=case: run(case) for case in CASES}, todo["repeats"])


def priced(case: str, compute: float) -> float:
    """Return what all iterations of both jobs should take."""
    from laconic.cluster.flows.rates import fair
    from laconic.cluster.flows.traffic import FlowJob, send_all
    from laconic.network.flow import Flow

    sent = Flow(np.array([0]), np.array([1]), np.array([float(NBYTES)]), 1)
    jobs = [FlowJob(f"job{k}", k * shift_of(case, compute), sent, ITERATIONS, compute) for k in range(2)]
    return float(send_all(jobs, 2, RATE * PAYLOAD_SHARE / 8, fair).completed.max())


def main() -> None:
    parser = argparse.ArgumentParser(description="Two jobs that share a link, together and interleaved.")
    parser.add_argument("--as-worker", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--compute", type=float, default=0.45, help="seconds of an iteration (default 0.45)")
    parser.add_argument("--repeats", type=int, default=3, help="of each case (default 3)")
    given = parser.parse_args()
    if given.as_worker:
        work(given.as_worker)
        return
    sites = {"site_workers": 2, "uplink_bits_per_second": RATE}
    found = measured_on_links(__file__, 4, FAST, given.repeats, {"compute": given.compute}, **sites)
    prices = [(case, priced(case, given.compute)) for case in CASES]
    title = f"{ITERATIONS} iterations of two jobs: {given.compute:g} s of computing, {NBYTES / 1e6:g} MB"
    Console(width=140).print(beside_prices(found, prices, title))


if __name__ == "__main__":
    main()
