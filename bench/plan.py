"""Compare the planner's predictions with the steps of real workers, and show whether its advice is the best that was
measured.

    python bench/plan.py                              # 2 models x 4 ratios x 17 strategies, 45 minutes; needs root
    python bench/plan.py --only large --only 14       # cells of this model, of this ratio
    python bench/plan.py --output plan.json --csv src/laconic/planner/measured/steps.csv

A cell is a model on shaped links, four workers with real computing. Its ratio r is the time of a plain exchange over
that of computing; batches are chosen so that links of at most 1 Gb/s give r = 0.15 to 14. For each cell: a profiling
run (that of `laconic plan --network probe`) leaves a profile; the planner prices every strategy from it; then real
processes take the steps, strategies in turn, block by block. No step that is predicted is used to fit anything.
"""

from __future__ import annotations

import argparse
import csv
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from laconic.launch.net import ShapedNetwork, shaped
from laconic.planner.autotune import PAYS
from laconic.values.run_config import RunConfig
from step_time import CHARACTERS, LENGTH, build_model, machine
from workers import STORE_PORT, end, report, reports_of, start

WORKERS = 4
RATES = {0.15: 1e9, 0.65: 1e9, 2.5: 5e8, 14.0: 1e8}  # bits per second by ratio
MODELS = ("small", "large")  # a transformer of 50 tensors, three large layers
BLOCKS, WARM_UP = 4, 9  # `auto` makes its plan after six steps
STRATEGIES = {  # text: steps of one period
    "torch:ddp": 1,
    "torch:ddp16": 1,
    "torch:ddp16(bucket_cap_mb=1)": 1,
    "bsp": 1,
    "bsp / none / allreduce / wfbp(0)": 1,
    "bsp / none / allreduce / dear(1MiB)": 1,
    "bsp / none / allreduce / auto": 1,
    "bsp / cast_bf16": 1,
    "bsp / cast_fp16": 1,
    "bsp / cast_int8": 1,
    "bsp / scaled_sign+ef": 1,
    "bsp / topk(0.1)+ef": 1,
    "bsp / topk(0.01)+ef": 1,
    "bsp / power_sgd(rank=2)+ef": 1,
    "local(4)": 4,
    "local(4) / cast_fp16": 4,
    "accumulate(4)": 4,
}


@dataclass(frozen=True)
class Work:
    """The task of the real processes: calibrate, profile, or take steps with every strategy in turn."""

    model: str
    samples: int
    strategies: tuple[str, ...]
    blocks: int = 0
    steps: int = 1


# ------------------------------------------------------------------------------------------------ training


def make(model: str, samples: int) -> tuple[Any, Any, Any]:
    """Return a model, its input and its targets."""
    import torch
    from torch import nn

    import laconic

    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(laconic.rank())
    if model == "small":
        tokens = torch.randint(CHARACTERS, (2, samples, LENGTH), generator=draw)
        return build_model(4, 192), tokens[0], tokens[1].flatten()
    made = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 512))
    x = torch.randn(samples * LENGTH, 256, generator=draw)
    return made, x, torch.randint(512, (samples * LENGTH,), generator=draw)


def prepare(work: Work, strategy: str | None) -> Any:
    """Return a function that takes one training step; without a strategy, one that does not communicate."""
    import torch

    import laconic

    model, x, y = make(work.model, work.samples)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-4)
    if strategy is not None:
        model, optimizer = laconic.distribute(model, optimizer, strategy)

    def step() -> None:
        torch.nn.functional.cross_entropy(model(x).flatten(0, -2), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def work(todo: Work) -> None:
    """Do a task as one real worker."""
    import torch
    import torch.distributed as dist

    if not todo.strategies:
        import laconic

        dist.init_process_group("gloo")
        alone = prepare(todo, None)
        took = []
        for _ in range(6):
            dist.barrier()
            begin = time.perf_counter()
            alone()
            mine = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            took.append(mine.item())
        if laconic.rank() == 0:
            report(seconds=statistics.median(took[1:]))
        return
    steps = {strategy: prepare(todo, strategy) for strategy in todo.strategies}
    while RunConfig.current().profile_to is not None:
        steps[todo.strategies[0]]()  # until the profiling run ends it
    for name, step in steps.items():
        for _ in range(WARM_UP if "auto" in name else STRATEGIES[name]):
            step()
    names = list(steps)
    for block in range(todo.blocks):
        seconds = {}
        for name in names[block % len(names) :] + names[: block % len(names)]:
            period = STRATEGIES[name]
            dist.barrier()
            for _ in range(period):  # connections and caches are as the last strategy left them
                steps[name]()
            count = period * max(1, todo.steps // period)
            begin = time.perf_counter()
            for _ in range(count):
                steps[name]()
            mine = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            seconds[name] = mine.item() / count
        report(seconds=seconds)


# ------------------------------------------------------------------------------------------------ the parent


def start_all(net: ShapedNetwork, todo: Work, logs: Path, config: RunConfig) -> list[subprocess.Popen[bytes]]:
    store = (net.places[0].address, STORE_PORT)
    return [
        start(__file__, asdict(todo), rank, WORKERS, store, place, logs, config.to_env())
        for rank, place in enumerate(net.places)
    ]


def run(model: str, ratio: float, blocks: int, console: Console) -> dict[str, Any]:
    """Calibrate, profile, predict and measure one cell."""
    from laconic.network.network_tree import Network
    from laconic.planner.deployment import Deployment
    from laconic.planner.price import Pricer
    from laconic.values.profile import Profile

    rate = RATES[ratio]
    config = RunConfig(heartbeat_seconds=60)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        net = stack.enter_context(shaped(WORKERS, rate, 0.0))
        workers: list[subprocess.Popen[bytes]] = []
        stack.callback(lambda: end(workers))

        def carry_out(todo: Work, config: RunConfig, reports: int) -> list[Any]:
            workers.extend(start_all(net, todo, logs, config))
            facts = reports_of(workers, logs) if reports else iter(())
            found = [next(facts)["seconds"] for _ in range(reports)]
            for worker in workers:
                worker.wait(600)
            workers.clear()
            return found

        elements = sum(p.numel() for p in make(model, 1)[0].parameters())
        exchange = 2 * (WORKERS - 1) / WORKERS * 4 * elements * 8 / rate * 1.15
        (few,), (many,) = (carry_out(Work(model, n, ()), config, 1) for n in (8, 32))
        each = max(1e-6, (many - few) / 24)
        samples = max(1, round((exchange / ratio - (few - 8 * each)) / each))
        console.print(f"{model}, r = {ratio}: {samples * LENGTH} samples a worker; profiling")
        path = logs / "profile.json"
        chains = sorted({chain_of(s) for s in STRATEGIES} - {"none"})
        profiling = RunConfig(
            profile_to=str(path),
            net_bits_per_second=rate,
            heartbeat_seconds=60,
            profile_steps=16,
            profile_words=chains,
        )
        carry_out(Work(model, samples, ("bsp",)), profiling, 0)
        if not path.exists():
            raise SystemExit("the profiling run left no profile: " + (logs / "0").read_text(errors="replace")[-2000:])
        profile = Profile.read(path)
        pricer = Pricer(Deployment(profile, Network.from_profile(profile), WORKERS))
        predicted = {strategy: priced(pricer, strategy) for strategy in STRATEGIES}
        steps = 1 if ratio > 5 else 2
        console.print(f"{model}, r = {ratio}: measuring {blocks} blocks")
        measured = carry_out(Work(model, samples, tuple(STRATEGIES), blocks, steps), config, blocks)
        return {
            "model": model,
            "ratio": ratio,
            "rate": rate,
            "samples": samples * LENGTH,
            "computing_seconds": profile.model.seconds,
            "profile": json.loads(path.read_text()),
            "predicted": predicted,
            "measured": {name: sorted(block[name] for block in measured) for name in STRATEGIES},
        }


def chain_of(strategy: str) -> str:
    from laconic.strategy import Sentence, Strategy

    if strategy.startswith("torch:"):
        return "cast_fp16" if "16" in strategy else "none"
    parsed = Strategy.parse(strategy)
    assert isinstance(parsed, Sentence)
    return parsed.chain


def priced(pricer: Any, strategy: str) -> float:
    if strategy.startswith("torch:"):
        cap = int(strategy.partition("=")[2].rstrip(")") or 25)
        return float(pricer.ddp(chain_of(strategy), cap * 2**20).seconds)
    return float(pricer.price(strategy).seconds)


# ------------------------------------------------------------------------------------------------ what it came to


def judged(cell: dict[str, Any]) -> dict[str, Any]:
    """Return how far the advice is from the best that was measured, and whether advice against all was right."""
    measured = {name: statistics.median(seen) for name, seen in cell["measured"].items()}
    predicted = cell["predicted"]
    rivals = [name for name in measured if name.startswith("torch:ddp16")]
    base = min(rivals, key=lambda name: predicted[name])
    best = min(predicted, key=lambda name: predicted[name])
    pays = predicted[base] / predicted[best] >= PAYS
    advised = best if pays else base
    really = min(measured[name] for name in rivals) / min(measured.values()) >= PAYS
    errors = [abs(predicted[name] / measured[name] - 1) for name in measured]
    return {
        "advised": advised,
        "regret": measured[advised] / min(measured.values()) - 1,
        "best": min(measured, key=lambda name: measured[name]),
        "pays": pays,
        "really": really,
        "mean": statistics.fmean(errors),
        "largest": max(errors),
        "r": (measured["torch:ddp"] - cell["computing_seconds"]) / cell["computing_seconds"],
    }


def show(cells: Sequence[dict[str, Any]], console: Console) -> None:
    table = Table(title=f"Predicted over measured step, {WORKERS} real workers on shaped links")
    table.add_column("strategy")
    for cell in cells:
        table.add_column(f"{cell['model']} r={cell['ratio']}", justify="right")
    for name in STRATEGIES:
        row = []
        for cell in cells:
            seen = statistics.median(cell["measured"][name])
            row.append(f"{1e3 * seen:.0f} ms {cell['predicted'][name] / seen:.2f}")
        table.add_row(name, *row)
    console.print(table)
    for cell in cells:
        found = judged(cell)
        advice = "pays" if found["pays"] else "keep DDP16"
        truth = "pays" if found["really"] else "nothing pays"
        console.print(
            f"{cell['model']} r={cell['ratio']}: advice {found['advised']} ({advice}; measured: {truth}), "
            f"{100 * found['regret']:.1f} % above the best measured ({found['best']}); error mean "
            f"{100 * found['mean']:.1f} %, largest {100 * found['largest']:.0f} %",
            markup=False,
        )
    means = [judged(cell)["mean"] for cell in cells]
    console.print(f"mean absolute error over all cells: {100 * statistics.fmean(means):.1f} %")


def write_csv(cells: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the cells for `laconic validate` and for the planner's own intervals."""
    names = ["model", "network", "r", "workers", "strategy"]
    names += ["predicted_seconds", "measured_seconds", "low_seconds", "high_seconds"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for cell in cells:
            for name, seen in cell["measured"].items():
                low, high = statistics.quantiles(seen, n=10, method="inclusive")[::8]
                numbers = [f"{x:.5g}" for x in (cell["predicted"][name], statistics.median(seen), low, high)]
                network = f"{cell['rate'] / 1e6:g}Mbit"
                writer.writerow([cell["model"], network, cell["ratio"], WORKERS, name, *numbers])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="a model or a ratio; repeatable")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--output", type=Path, help="all figures as JSON; cells that are in it are not run again")
    parser.add_argument("--csv", type=Path, help="predicted and measured steps")
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_worker:
        work(Work(**json.loads(args.as_worker)))
        return
    models = [m for m in MODELS if m in args.only] or list(MODELS)
    ratios = [r for r in RATES if f"{r:g}" in args.only] or list(RATES)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    console, cells = Console(), []
    if args.output and args.output.is_file():
        cells = json.loads(args.output.read_text())["cells"]
    known = {(cell["model"], cell["ratio"]) for cell in cells}
    for model in models:
        for ratio in ratios:
            if (model, ratio) not in known:
                cells.append(run(model, ratio, args.blocks, console))
                if args.output:
                    args.output.write_text(json.dumps({"machine": machine(), "cells": cells}, indent=1) + "\n")
    console.print(machine())
    show(cells, console)
    if args.csv:
        write_csv(cells, args.csv)


if __name__ == "__main__":
    main()
