"""Measure what the executor adds to a bucket beyond the bare call, and how long plans take to make.

    python bench/executor.py            # about a minute; one process, gloo

One worker, 400 small tensors, a message for each: a step with laconic less a step without it, less 400 all-reduces
called and waited for by hand; per bucket, medians of interleaved blocks. Then the time of a cold plan for 400 tensors.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn

import laconic
from laconic.strategy import Strategy
from laconic.values.price import Price
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing
from workers import free_port

TENSORS, ELEMENTS, BLOCKS, STEPS = 400, 256, 15, 8
WORDS = ("sequential", "wfbp(0)", "bytescheduler", "dear(0)", "p3")
PLANS = ("sequential", "wfbp", "mg_wfbp", "mg_wfbp(greedy)", "horovod", "bytescheduler", "dear", "p3", "prophet")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ELEMENTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def stepping(word: str | None) -> Callable[[], float]:
    """Return the seconds of a step."""
    model: Any = nn.Sequential(*(Layer() for _ in range(TENSORS)))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.0)
    if word is not None:
        model, optimizer = laconic.distribute(model, optimizer, f"bsp / allreduce / {word}")
    x = torch.ones(ELEMENTS)

    def step() -> float:
        begin = time.perf_counter()
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - begin

    for _ in range(12):  # beyond the iterations that are timed before a plan is made
        step()
    return step


def bare() -> float:
    tensors = [torch.ones(ELEMENTS) for _ in range(TENSORS)]
    begin = time.perf_counter()
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for work in works:
        work.wait()
    return time.perf_counter() - begin


def overheads(console: Console) -> None:
    acts: dict[str, Callable[[], float]] = {"": stepping(None), "bare": bare, **{w: stepping(w) for w in WORDS}}
    seen: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(BLOCKS):
        for name, act in acts.items():
            seen[name].append(statistics.median(act() for _ in range(STEPS)))
    plain, calls = (statistics.median(seen[name]) for name in ("", "bare"))
    table = Table(title=f"{TENSORS} tensors of {ELEMENTS} elements, one worker: microseconds a tensor")
    for heading in ("", "step", "beyond the plain step", "beyond the bare calls as well"):
        table.add_column(heading, justify="right")
    table.add_row("plain", f"{1e6 * plain / TENSORS:.1f}", "", "")
    table.add_row("bare all-reduces", f"{1e6 * calls / TENSORS:.1f}", "", "")
    for word in WORDS:
        took = statistics.median(seen[word])
        more = took - plain
        own = "" if word == "sequential" else f"{1e6 * (more - calls) / TENSORS:.1f}"
        table.add_row(word, f"{1e6 * took / TENSORS:.1f}", f"{1e6 * more / TENSORS:.1f}", own)
    console.print(table)


def plans(console: Console) -> None:
    sizes = [1 << 20 if i % 8 == 0 else 1 << 10 for i in range(TENSORS)]
    tensors = [TensorSpec(str(i), (n,), torch.float32) for i, n in enumerate(sizes)]
    arrival = list(reversed(range(TENSORS)))
    timing = Timing((0.05 / TENSORS,) * TENSORS, (0.1 / TENSORS,) * TENSORS, Price(3e-4, 1.6e-9))
    table = Table(title=f"a cold plan for {TENSORS} tensors (105 million parameters), timing known")
    table.add_column("schedule")
    table.add_column("ms [least–most]", justify="right")
    for word in (*PLANS, "auto"):
        took = []
        for _ in range(7):
            schedule = Strategy.parse(f"bsp / {word}").schedule.make()  # type: ignore[attr-defined]
            begin = time.perf_counter()
            schedule.plan(tensors, arrival, timing)
            took.append(1e3 * (time.perf_counter() - begin))
        table.add_row(word, f"{statistics.median(took):.2f} \\[{min(took):.2f}–{max(took):.2f}]")
    console.print(table)


def main() -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), RANK="0", WORLD_SIZE="1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    console = Console()
    overheads(console)
    plans(console)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
