"""All schedules against tuned DDP, with honest overlap: workers whose computing is emulated by waits.

    python bench/schedules.py                         # about 25 minutes; needs root
    python bench/schedules.py --models large --ratios 2.5 --steps 6
    python bench/schedules.py --folder runs/schedules # keeps what was measured, and goes on from there

Eight workers on a shaped network train models of many small tensors, of few large ones, and a transformer; computing
is as long as it takes for DDP's communication to last r times as long. The rival is the best of PyTorch's DDP with
buckets of 25, 5 and 1 MB. Beside each measured step stands the virtual engine's prediction, from the model's profile
and collectives of several sizes that were timed on the same network before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from laconic.launch.net import shaped
from laconic.values.profile import ModelTimes, Profile, Seconds, TensorTime
from workers import STORE_PORT, end, report, reports_of, start

WORKERS, BITS_PER_SECOND = 8, 400e6
RATIOS = (0.15, 0.65, 2.5, 14.0)
DDP = ("ddp 25", "ddp 5", "ddp 1")
WORDS = (
    "sequential",
    "wfbp(0)",
    "wfbp(1MiB)",
    "mg_wfbp",
    "horovod",
    "bytescheduler(250000, credit=1000000)",
    "dear(1MiB)",
    "prophet",
    "ooo_backprop_dp(partition=250000, credit=1000000)",
    "auto",
)
WATCHED = 7  # steps after which schedules that measure have made their plan
LINK_ROUNDS = 3
MODELS = ("small", "large", "transformer")


def shapes(model: str) -> list[tuple[str, int]]:
    """Return tensors in the order of the forward pass: 2 million parameters each."""
    if model == "small":
        return [(f"layer{i}.{part}", n) for i in range(60) for part, n in (("weight", 33_000), ("bias", 300))]
    if model == "large":
        sizes = (20_000, 80_000, 200_000, 400_000, 1_200_000, 100_000)
        return [(f"layer{i}.weight", n) for i, n in enumerate(sizes)]
    width = 128
    found = [("embed.weight", 256 * width)]
    for i in range(10):
        found += [(f"block{i}.norm1.weight", width), (f"block{i}.norm1.bias", width)]
        found += [(f"block{i}.qkv.weight", 3 * width * width), (f"block{i}.out.weight", width * width)]
        found += [(f"block{i}.norm2.weight", width), (f"block{i}.norm2.bias", width)]
        found += [(f"block{i}.up.weight", 4 * width * width), (f"block{i}.down.weight", 4 * width * width)]
    return [*found, ("norm.weight", width), ("norm.bias", width), ("head.weight", 256 * width)]


def profile(model: str, seconds: float) -> Profile:
    """Return the profile of a step of this many seconds, a third of them forward; backward divides over tensors by the
    square root of their size, between by layer and by element."""
    layers = list(reversed(shapes(model)))
    whole = sum(n**0.5 for _, n in layers)
    backward = seconds * 2 / 3
    tensors = tuple(TensorTime(name, (n,), "float32", backward * n**0.5 / whole) for name, n in layers)
    return Profile(ModelTimes(tensors, Seconds(seconds / 3), Seconds(backward), Seconds(0.0)), WORKERS)


# ---------------------------------------------------------------------------------------------- in a worker


def train(model: str, seconds: float, dilation: float, variant: str, steps: int, clock: Any) -> list[float]:
    """Return the seconds of each step after the warm-up."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import laconic
    from laconic.profile.emulate import emulated

    net: Any = emulated(profile(model, seconds), dilation)
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.0)
    ours = not variant.startswith("ddp")
    running: Any
    if ours:
        running, optimizer = laconic.distribute(net, optimizer, f"bsp / allreduce / {variant}")
    else:
        running = DistributedDataParallel(net, bucket_cap_mb=float(variant.split()[1]), gradient_as_bucket_view=True)
    measures = ours and optimizer.session.partitions[0].tiers[0].schedule.measures
    warm = WATCHED + 1 if measures else 2
    ends = []
    for _ in range(warm + steps):
        running(1.0).backward()
        optimizer.step()
        optimizer.zero_grad()
        ends.append(clock())
    if ours:
        laconic.finish(running, optimizer)
        laconic.undistribute(running, optimizer)
    return [b - a for a, b in zip(ends[warm - 1 :], ends[warm:], strict=False)]


def work(todo: dict[str, Any]) -> None:
    from dataclasses import asdict

    import torch.distributed as dist

    from laconic.profile.links import LinkTrials
    from laconic.real.connect import connect

    world = connect().world
    links = LinkTrials(world, 4.0 * max(sum(n for _, n in shapes(model)) for model in MODELS))
    for _ in range(LINK_ROUNDS):
        links.round()
    report(links=asdict(links.result(BITS_PER_SECOND, 0.0)))
    for cell in todo["cells"]:
        world.barrier().wait()
        seen = train(cell["model"], cell["seconds"], 1.0, cell["variant"], cell["steps"], time.perf_counter)
        report(cell=cell, seen=seen)
    dist.barrier()


# ---------------------------------------------------------------------------------------------- outside


def predict(cell: dict[str, Any], links: dict[str, Any]) -> float:
    """Predict on the virtual engine, from the model's profile and collectives as they were measured alone and at once.
    Emulated computing needs no processor, so that they go on beside it as without it."""
    import laconic
    from laconic.network.network_tree import Network
    from laconic.real.connect import connect
    from laconic.virtual.compute import Compute

    own = profile(cell["model"], cell["seconds"])
    table = json.loads(own.to_json()) | {"links": links}
    for operation in table["links"]["operations"]:
        for point in operation["points"]:
            point["pace"] = 1.0
    known = Profile.from_json(json.dumps(table))
    variant = cell["variant"]
    if variant.startswith("ddp"):
        variant = f"wfbp({variant.split()[1]}MiB)"
    out = laconic.simulate(
        lambda: train(cell["model"], cell["seconds"], 0.0, variant, 2, connect().clock_seconds),
        WORKERS,
        Network.from_profile(known),
        Compute.from_profile(known),
    )
    return statistics.median(out.results[0])


def measure(cells: list[dict[str, Any]], console: Console) -> tuple[dict[str, Any], list[list[float]]]:
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        net = stack.enter_context(shaped(WORKERS, BITS_PER_SECOND, 0.0))
        workers: list[subprocess.Popen[bytes]] = []
        stack.callback(lambda: end(workers))
        store = (net.places[0].address, STORE_PORT)
        for rank, place in enumerate(net.places):
            workers.append(start(__file__, {"cells": cells}, rank, WORKERS, store, place, logs))
        reports = reports_of(workers, logs)
        links = next(reports)["links"]
        seen = []
        for number, cell in enumerate(cells):
            seen.append(next(reports)["seen"])
            typical = statistics.median(seen[-1])
            name = f"{cell['model']} r={cell['ratio']} {cell['variant']}"
            console.print(f"{number + 1}/{len(cells)} {name}: {1e3 * typical:.1f} ms", markup=False)
        for worker in workers:
            worker.wait(60)
        return links, seen


def cells_of(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the cells: the computing time follows from what one worker sends at the network's rate; blocks interleave
    the variants."""
    found = []
    for model in args.models.split(","):
        nbytes = 4 * sum(n for _, n in shapes(model))
        sending_seconds = 2 * (WORKERS - 1) / WORKERS * nbytes * 8 / BITS_PER_SECOND
        for ratio in args.ratios:
            for _ in range(args.blocks):
                for variant in (*DDP, *args.words):
                    cell = {"model": model, "ratio": ratio, "seconds": sending_seconds / ratio, "variant": variant}
                    found.append({**cell, "steps": args.steps})
    return found


def tables(console: Console, rows: list[dict[str, Any]], words: list[str]) -> None:
    keys = list(dict.fromkeys((row["model"], row["ratio"]) for row in rows))
    errors, wrong, pairs = [], [], 0
    made = Table(title=f"step time over the best of DDP at 25, 5 and 1 MB; {WORKERS} emulated workers")
    made.add_column("model, r")
    for heading in ("DDP ms [spread]", *words):
        made.add_column(heading.split("(")[0] + ("(…)" if "(" in heading else ""), justify="right")
    for model, ratio in keys:
        here = {row["variant"]: row for row in rows if (row["model"], row["ratio"]) == (model, ratio)}
        rival = min((here[name] for name in DDP), key=lambda row: row["median"])
        spread = f"{rival['low']:.0f}–{rival['high']:.0f}"
        shown = [f"{here[word]['median'] / rival['median']:.3f}" for word in words]
        made.add_row(f"{model}, {ratio:g}", f"{rival['variant'][4:]} MB {rival['median']:.0f} [{spread}]", *shown)
        errors += [abs(row["predicted"] / row["median"] - 1) for row in here.values()]
        for a, b in combinations(here.values(), 2):
            if max(a["median"], b["median"]) > 1.1 * min(a["median"], b["median"]):
                pairs += 1
                if (a["median"] < b["median"]) != (a["predicted"] < b["predicted"]):
                    wrong.append(f"{model} r={ratio:g}: {a['variant']} and {b['variant']}")
    console.print(made)
    ratios = Table(title="predicted over measured")
    ratios.add_column("model, r")
    for heading in (*DDP, *words):
        ratios.add_column(heading.split("(")[0] + ("(…)" if "(" in heading else ""), justify="right")
    for model, ratio in keys:
        here = {row["variant"]: row for row in rows if (row["model"], row["ratio"]) == (model, ratio)}
        shown = [f"{here[name]['predicted'] / here[name]['median']:.2f}" for name in (*DDP, *words)]
        ratios.add_row(f"{model}, {ratio:g}", *shown)
    console.print(ratios)
    console.print(f"predicted step time: mean absolute error {100 * statistics.mean(errors):.1f} %, ", end="")
    console.print(
        f"largest {100 * max(errors):.1f} %; order wrong in {len(wrong)} of {pairs} pairs more than 10 % apart"
    )
    for pair in wrong:
        console.print(f"  {pair}", markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="All schedules against tuned DDP on emulated compute.")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ratios", type=float, nargs="+", default=list(RATIOS), help="communication over computing")
    parser.add_argument("--words", nargs="+", default=list(WORDS), help="schedules")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=1, help="interleaved repetitions")
    parser.add_argument("--folder", type=Path, help="where results are kept; what is there is not measured again")
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_worker:
        work(json.loads(args.as_worker))
        return
    console = Console(width=200)
    kept = None if args.folder is None else args.folder / "schedules.json"
    rows: list[dict[str, Any]] = json.loads(kept.read_text()) if kept is not None and kept.exists() else []
    done = {(row["model"], row["ratio"], row["variant"]) for row in rows}
    cells = [cell for cell in cells_of(args) if (cell["model"], cell["ratio"], cell["variant"]) not in done]
    if cells:
        links, seen = measure(cells, console)
        for cell in dict.fromkeys(json.dumps(cell) for cell in cells):
            samples = [s for other, own in zip(cells, seen, strict=True) if json.dumps(other) == cell for s in own]
            row = json.loads(cell)
            cuts = statistics.quantiles(samples, n=10, method="inclusive")
            row |= {"median": 1e3 * statistics.median(samples), "low": 1e3 * cuts[0], "high": 1e3 * cuts[-1]}
            rows.append(row | {"predicted": 1e3 * predict(row, links)})
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(rows, indent=1))
    tables(console, rows, args.words)


if __name__ == "__main__":
    main()
