"""Cases that take turns on workers with shaped links: their seconds and bytes, beside their prices."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from workers import STORE_PORT, end, report, reports_of, start

Measured = dict[str, list[tuple[float, float]]]
"""For each case and repeat, the seconds of the slowest worker and the bytes of the one that sent most."""


def take_turns(worker: Any, cases: Mapping[str, Callable[[], object]], repeats: int) -> None:
    """Run all cases in turn on this worker, and report what each took; the first two turns are warm-up."""
    import torch
    import torch.distributed as dist

    for turn in range(repeats + 2):
        for name, run in cases.items():
            dist.barrier()
            begin, sent = time.perf_counter(), worker.ledger.sent_bytes()
            run()
            spent = torch.tensor([time.perf_counter() - begin, worker.ledger.sent_bytes() - sent], dtype=torch.float64)
            dist.all_reduce(spent, op=dist.ReduceOp.MAX)
            if turn > 1:
                report(name=name, seconds=float(spent[0]), sent=float(spent[1]))
    report(end=True)
    dist.barrier()


def measured_on_links(
    script: str, workers: int, rate: float, repeats: int, told: Mapping[str, Any] | None = None, **sites: Any
) -> Measured:
    """Start workers of a script, which `take_turns`, on links of so many bits a second, and return what they report.

    They are told how often to repeat, and what else there is to tell; several sites of workers are described as
    `laconic.launch.net.shaped` has them.
    """
    from laconic.launch.net import shaped

    found: Measured = {}
    with tempfile.TemporaryDirectory() as folder, shaped(workers, rate, **sites) as net:
        store, started = (net.places[0].address, STORE_PORT), []
        try:
            for rank in range(workers):
                todo = {"repeats": repeats, **(told or {})}
                started.append(start(script, todo, rank, workers, store, net.places[rank], Path(folder)))
            for fact in reports_of(started, Path(folder)):
                if "end" in fact:
                    break
                found.setdefault(fact["name"], []).append((fact["seconds"], fact["sent"]))
        finally:
            end(started)
    return found


def beside_prices(found: Measured, priced: Iterable[tuple[str, float]], title: str) -> Table:
    """Return a table of what cases took and of what they should take."""
    table = Table("case", "measured", "spread", "priced", "measured over priced", "most sent", title=title)
    for name, price in priced:
        seconds = sorted(spent for spent, _ in found[name])
        table.add_row(
            name,
            f"{statistics.median(seconds) * 1e3:.1f} ms",
            f"{seconds[0] * 1e3:.1f} to {seconds[-1] * 1e3:.1f}",
            f"{price * 1e3:.1f} ms",
            f"{statistics.median(seconds) / price:.3f}",
            f"{found[name][0][1] / 1e6:.2f} MB",
        )
    return table
