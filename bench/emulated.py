"""Schedules with honest overlap: eight workers whose computing is emulated by waits, on a network slowed alike.

    python bench/emulated.py                  # about 6 minutes; needs root, 8 GB
    python bench/emulated.py --dilation 60

The profile is ResNet-50's (tensors and operations from its definition, one GPU's iteration time as published with
`ddl-benchmarks`, read through LACONIC_DATA). Everything takes `dilation` times as long as on eight machines with one
such GPU and 10 Gb/s Ethernet; the table divides it out again. Beside it stands the virtual engine's prediction.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from laconic.launch.net import shaped
from laconic.profile.zoo import resnet50
from laconic.values.profile import ModelTimes, Profile, Seconds, TensorTime
from workers import STORE_PORT, end, report, reports_of, start

WORKERS, BITS_PER_SECOND, LATENCY_SECONDS = 8, 1e10, 50e-6
FORWARD_SHARE = 1 / 3  # of an iteration; backward takes two operations for each of forward's
SCHEDULES = ("sequential", "wfbp", "wfbp(4MiB)")
WARM_UP, STEPS = 2, 4


def profile() -> Profile:
    """Return the profile; the time of backward is divided over tensors by their multiplications."""
    folder = Path(os.environ.get("LACONIC_DATA", Path(__file__).parents[1] / ".." / "shared" / "data"))
    lines = [line for line in (folder / "ddl-benchmarks/inputs.csv").open() if not line.startswith("#")]
    facts = {row["field"]: float(row["value"]) for row in csv.DictReader(lines) if row["name"] == "ResNet-50"}
    iteration = facts["single_gpu_iteration"] / 1e3
    layers = list(reversed(resnet50()))
    assert len(layers) == facts["tensors"]
    assert round(sum(math.prod(shape) for _, shape, _ in layers), -4) == facts["parameters"]
    whole, backward = sum(work for _, _, work in layers), iteration * (1 - FORWARD_SHARE)
    tensors = tuple(TensorTime(name, shape, "float32", backward * work / whole) for name, shape, work in layers)
    times = ModelTimes(tensors, Seconds(iteration * FORWARD_SHARE), Seconds(backward), Seconds(0.0))
    return Profile(times, WORKERS)


def train(schedule: str, dilation: float, clock: Any) -> list[float]:
    """Train, and return the time at which each step ended."""
    import torch

    import laconic
    from laconic.profile.emulate import emulated

    model: Any = emulated(profile(), dilation)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.0)
    model, optimizer = laconic.distribute(model, optimizer, schedule)
    ends = []
    for _ in range(WARM_UP + STEPS):
        model(1.0).backward()
        optimizer.step()
        optimizer.zero_grad()
        ends.append(clock())
    return ends


def predict(schedule: str) -> float:
    import laconic
    from laconic.network.network_tree import Network
    from laconic.real.connect import connect
    from laconic.virtual.compute import Compute

    network = Network.flat(WORKERS, BITS_PER_SECOND, LATENCY_SECONDS)
    out = laconic.simulate(
        lambda: train(schedule, 0.0, connect().clock_seconds), WORKERS, network, Compute.from_profile(profile())
    )
    return (out.results[0][-1] - out.results[0][WARM_UP - 1]) / STEPS


def measure(schedule: str, dilation: float) -> list[float]:
    """Return the dilated seconds of each step."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        net = stack.enter_context(shaped(WORKERS, BITS_PER_SECOND / dilation, 0.0))
        workers: list[subprocess.Popen[bytes]] = []
        stack.callback(lambda: end(workers))
        store = (net.places[0].address, STORE_PORT)
        for rank, place in enumerate(net.places):
            workers.append(start(__file__, [schedule, dilation], rank, WORKERS, store, place, logs))
        ends: list[float] = next(reports_of(workers, logs))["ends"]
        for worker in workers:
            worker.wait(60)
        return [b - a for a, b in zip(ends[WARM_UP - 1 :], ends[WARM_UP:], strict=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Schedules on emulated compute.")
    parser.add_argument("--dilation", type=float, default=40.0, help="how much slower than on real machines")
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_worker:
        schedule, dilation = json.loads(args.as_worker)
        report(ends=train(schedule, dilation, time.perf_counter))
        return
    compute = profile().model.seconds
    console = Console()
    made = Table(title=f"ResNet-50 on {WORKERS} emulated GPUs, 10 Gb/s, dilation {args.dilation:g} divided out")
    for heading in ("schedule", "step ms [least–most]", "predicted ms", "measured/predicted", "step/compute"):
        made.add_column(heading, justify="left" if heading == "schedule" else "right")
    for schedule in SCHEDULES:
        predicted, seen = predict(schedule), [seconds / args.dilation for seconds in measure(schedule, args.dilation)]
        typical = statistics.median(seen)
        spread = f"\\[{1e3 * min(seen):.1f}–{1e3 * max(seen):.1f}]"
        made.add_row(
            schedule,
            f"{1e3 * typical:.1f} {spread}",
            f"{1e3 * predicted:.1f}",
            f"{typical / predicted:.3f}",
            f"{typical / compute:.2f}",
        )
    console.print(made)
    console.print(f"one GPU alone, as published: {1e3 * compute:.1f} ms")


if __name__ == "__main__":
    main()
