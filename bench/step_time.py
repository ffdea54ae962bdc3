"""Step time of `laconic.distribute` over PyTorch's DistributedDataParallel, both at their defaults.

    python bench/step_time.py                              # everything, about ten minutes; needs root for the networks
    python bench/step_time.py --only 2m/unshaped           # one cell
    python bench/step_time.py --output step_time.json

Four processes run all variants of a cell in turn: DDP, laconic, and a second DDP (`ddp'`), a few steps each, in a
rotating order. A block's ratio compares neighbours in time, so that slow noise cancels; DDP'/DDP shows how much noise
is left. Batches are small, so that communication matters. laconic's heartbeat threads run beside all variants.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from laconic.launch.net import interface_bytes, shaped
from workers import STORE_PORT, end, free_port, report, reports_of, start

WORKERS = 4
MODELS = {"2m": (4, 192), "25m": (8, 512)}  # layers, width
NETWORKS: dict[str, float | None] = {"unshaped": None, "1gbit": 1e9, "100mbit": 1e8}  # bits per second
STEPS = {"2m/unshaped": 20, "2m/1gbit": 4, "25m/unshaped": 2}  # per variant and block; 1 where a step is slow
BLOCKS = {"25m/100mbit": 5}
CHARACTERS, SEQUENCES, LENGTH = 512, 2, 16
VARIANTS = ("ddp", "laconic", "ddp'")


@dataclass(frozen=True)
class Cell:
    """One model on one network."""

    model: str
    network: str
    blocks: int
    steps: int
    bucket_view: bool

    @property
    def name(self) -> str:
        return f"{self.model}/{self.network}"


# ------------------------------------------------------------------------------------------------ one worker


def work(cell: Cell) -> None:
    """Run one worker: build, warm up, wait for the network to be limited, measure. Rank 0 reports to the parent."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import laconic

    torch.manual_seed(0)
    original = build_model(*MODELS[cell.model])
    draw = torch.Generator().manual_seed(laconic.rank())
    tokens = torch.randint(CHARACTERS, (2, SEQUENCES, LENGTH), generator=draw)

    def sgd(model: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=1e-3)

    own = copy.deepcopy(original)
    trained = {"laconic": laconic.distribute(own, sgd(own))}
    for name in ("ddp", "ddp'"):
        wrapped = DistributedDataParallel(copy.deepcopy(original), gradient_as_bucket_view=cell.bucket_view)
        trained[name] = (wrapped, sgd(wrapped))

    def take_steps(name: str, count: int) -> None:
        model, optimizer = trained[name]
        for _ in range(count):
            loss = torch.nn.functional.cross_entropy(model(tokens[0]).flatten(0, 1), tokens[1].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    def timed(take: Callable[[], None]) -> float:
        dist.barrier()
        start = time.perf_counter()
        take()
        mine = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        return mine.item() / cell.steps

    def alone() -> None:
        with trained["ddp'"][0].no_sync():
            take_steps("ddp'", cell.steps)

    for name in VARIANTS:
        take_steps(name, 3)  # both plan their messages anew after the first step
    report(parameters=sum(p.numel() for p in own.parameters()), tensors=len(list(own.parameters())))
    if laconic.rank() == 0 and not sys.stdin.readline():
        sys.exit("the process that measures is gone")

    ledger = trained["laconic"][1].session.worker.ledger
    counted_bytes = torch.zeros(3, dtype=torch.float64)  # the ledger's; the interface's during laconic, during DDP
    for block in range(cell.blocks):
        seconds = {}
        for turn in range(len(VARIANTS)):
            name = VARIANTS[(block + turn) % len(VARIANTS)]
            dist.barrier()
            before = (ledger.sent_bytes(), wire_bytes())
            seconds[name] = timed(lambda name=name: take_steps(name, cell.steps))
            counted, sent = ledger.sent_bytes() - before[0], wire_bytes() - before[1]
            if name != "ddp'":
                share = [counted, sent, 0] if name == "laconic" else [0, 0, sent]
                counted_bytes += torch.tensor(share, dtype=torch.float64)
        report(seconds=seconds, compute=timed(alone))
    dist.all_reduce(counted_bytes)
    ledgered, wire, wire_ddp = (counted_bytes / (WORKERS * cell.blocks * cell.steps)).tolist()
    report(ledger_bytes=ledgered, wire_bytes=wire, wire_bytes_ddp=wire_ddp)


def build_model(layers: int, width: int) -> Any:
    """Return a stock transformer: 12 tensors a layer of very different sizes, as real models have."""
    from torch import nn

    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(CHARACTERS, width), encoder, nn.Linear(width, CHARACTERS))


def wire_bytes() -> int:
    """Return the bytes that this worker's own interface has sent; 0 on the loopback, whose counter all workers
    share."""
    name = os.environ["GLOO_SOCKET_IFNAME"]
    return 0 if name == "lo" else interface_bytes(name)[0]


# ------------------------------------------------------------------------------------------------ the parent


def measure(cell: Cell, on_block: Callable[[], None]) -> dict[str, Any]:
    """Run a cell's workers, and collect what rank 0 reports."""
    rate = NETWORKS[cell.network]
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        net = None if rate is None else stack.enter_context(shaped(WORKERS, bits_per_second=None))
        homes = [None] * WORKERS if net is None else net.places
        store = ("127.0.0.1", free_port()) if net is None else (net.places[0].address, STORE_PORT)
        workers: list[subprocess.Popen[bytes]] = []
        stack.callback(end, workers)
        for rank, home in enumerate(homes):
            workers.append(start(__file__, asdict(cell), rank, WORKERS, store, home, logs))
        facts = reports_of(workers, logs)
        result: dict[str, Any] = {"cell": asdict(cell), **next(facts), "blocks": []}
        if net is not None and rate is not None:
            net.limit(rate)
        workers[0].stdin.write(b"\n")
        workers[0].stdin.flush()
        for _ in range(cell.blocks):
            result["blocks"].append(next(facts))
            on_block()
        result |= next(facts)
        for worker in workers:
            worker.wait(60)
        return result


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, 5 % and 95 %."""
    ordered = sorted(values)
    if len(ordered) == 1:
        return ordered[0], ordered[0], ordered[0]
    cuts = statistics.quantiles(ordered, n=20, method="inclusive")
    return statistics.median(ordered), cuts[0], cuts[-1]


def summarise(result: dict[str, Any]) -> dict[str, Any]:
    blocks = [block["seconds"] for block in result["blocks"]]
    compute = statistics.median(block["compute"] for block in result["blocks"])
    ddp = statistics.median(block["ddp"] for block in blocks)
    return {
        "ddp_seconds": ddp,
        "laconic_seconds": statistics.median(block["laconic"] for block in blocks),
        "laconic_over_ddp": spread([block["laconic"] / block["ddp"] for block in blocks]),
        "ddp_over_itself": spread([block["ddp'"] / block["ddp"] for block in blocks]),
        "r": (ddp - compute) / compute,
        "wire_over_ledger": result["wire_bytes"] / result["ledger_bytes"] if result["wire_bytes"] else None,
    }


def table(results: Sequence[dict[str, Any]]) -> Table:
    made = Table(title=f"Step time, gloo, {WORKERS} workers, one thread each; brackets: 5–95 % of the blocks")
    for heading in ("model", "network", "r", "DDP ms", "laconic ms", "laconic/DDP", "DDP'/DDP"):
        made.add_column(heading, justify="left" if heading in ("model", "network") else "right")
    for heading in ("MB/step", "wire/ledger", "blocks × steps"):
        made.add_column(heading, justify="right")
    for result in results:
        cell, facts = result["cell"], summarise(result)
        ratios = ("{:.3f} [{:.3f}–{:.3f}]".format(*facts[key]) for key in ("laconic_over_ddp", "ddp_over_itself"))
        made.add_row(
            f"{result['parameters'] / 1e6:.1f} M, {result['tensors']} tensors",
            cell["network"],
            f"{facts['r']:.2f}",
            f"{1e3 * facts['ddp_seconds']:.1f}",
            f"{1e3 * facts['laconic_seconds']:.1f}",
            *(text.replace("[", "\\[") for text in ratios),
            f"{result['ledger_bytes'] / 1e6:.2f}",
            "–" if facts["wire_over_ledger"] is None else f"{facts['wire_over_ledger']:.4f}",
            f"{len(result['blocks'])} × {cell['steps']}",
        )
    made.caption = "r = (step − step without communication) / step without communication, of DDP"
    return made


def machine() -> dict[str, Any]:
    from importlib.metadata import version

    cpu = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "load_at_start": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": version("torch"),
        "laconic": version("laconic"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Step time of laconic over DDP.")
    parser.add_argument("--only", action="append", metavar="MODEL/NETWORK", help="as 2m/unshaped, 25m or 1gbit")
    parser.add_argument("--blocks", type=int, help="alternating blocks (default 15; 5 for 25m/100mbit)")
    parser.add_argument("--steps", type=int, help="steps of each variant in a block (default: by model and network)")
    parser.add_argument("--bucket-view", action="store_true", help="give DDP gradient_as_bucket_view=True")
    parser.add_argument("--output", type=Path, help="write all block times as JSON")
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_worker:
        work(Cell(**json.loads(args.as_worker)))
        return
    names = [f"{model}/{net}" for model in MODELS for net in NETWORKS]
    chosen = [n for n in names if not args.only or any(set(o.split("/")) <= set(n.split("/")) for o in args.only)]
    if not chosen:
        parser.error(f"--only {' '.join(args.only)} names none of {', '.join(names)}")
    cells = [
        Cell(*name.split("/"), args.blocks or BLOCKS.get(name, 15), args.steps or STEPS.get(name, 1), args.bucket_view)
        for name in chosen
    ]
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that workers end with their parent
    about, results = machine(), []
    console = Console()
    try:
        with Progress(console=console) as progress:
            for cell in cells:
                task = progress.add_task(cell.name, total=cell.blocks)
                results.append(measure(cell, lambda task=task: progress.advance(task)))
    except KeyboardInterrupt:
        console.print(f"interrupted after {len(results)} of {len(cells)} cells")
    console.print(about)
    console.print(table(results))
    if args.output:
        rows = [{**result, "summary": summarise(result)} for result in results]
        args.output.write_text(json.dumps({"machine": about, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
