"""Sharded training on a slow network: a step's time and bytes with FSDP2's own collectives and with this library's.

    python bench/sharded.py                          # 2 workers at 100 Mb/s and 1 Gb/s; needs root, `ip` and `tc`
    python bench/sharded.py --workers 4 --rates 1e8 --repeats 5

Real processes train a character transformer that `fully_shard` has sharded block by block. Rows take turns in one run
of the processes, several times, and the median of their times is shown: `native` is PyTorch's own reduce-scatter on
gloo, which sends an all-reduce's bytes; `bare` is the honest baseline, a dense all-to-all in twelve lines without this
library, and `none` is the same through this library. Bytes are counted twice: by the ledger and by the network
interface.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "examples")]

from workers import STORE_PORT, end, report, reports_of, start  # noqa: E402

ROWS = {
    "native": (None, None),
    "bare": (None, None),
    "none": ("none", None),
    "bf16": ("bf16", "bf16"),
    "zero_plus_plus": ("zero_plus_plus", None),
    "sdp4bit": ("sdp4bit", None),
    "loco": ("int4(128)+loco", "int8(256)"),
}


# ------------------------------------------------------------------------------------------------ in a worker


def work(todo: dict[str, Any]) -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    import laconic
    from chars import Shape, build_model, default_text, draw_batch, load_text, loss_of
    from laconic.launch.net import interface_bytes
    from laconic.real.connect import connect

    text = default_text()
    learned, _, characters = load_text(text if text.is_file() else HERE.parent / "examples" / "chars.py")
    shape = Shape(todo["layers"], todo["width"], todo["context"])
    worker, interface = connect(), os.environ["GLOO_SOCKET_IFNAME"]
    mesh = init_device_mesh("cpu", (worker.size,), mesh_dim_names=("shard",))

    def training(name: str) -> Any:
        model: Any = build_model(0, characters, shape)
        for block in _blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
        strategy, weights = ROWS[name]
        if name == "bare":
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.set_custom_reduce_scatter(bare_all_to_all())
        if strategy is not None:
            model, optimizer = laconic.distribute(model, optimizer, strategy, weights=weights)
        return model, optimizer

    trained = {name: training(name) for name in todo["rows"]}
    for turn in range(todo["repeats"] + 1):
        for name, (model, optimizer) in trained.items():
            worker.world.barrier().wait()
            begin = time.perf_counter(), interface_bytes(interface)[0], worker.ledger.sent_bytes()
            for step in range(todo["steps"]):
                inputs = draw_batch(learned, shape.context, todo["batch"], (turn, step, worker.rank))
                loss_of(model, *inputs).backward()
                optimizer.step()
                optimizer.zero_grad()
            worker.world.barrier().wait()
            spent = time.perf_counter() - begin[0], interface_bytes(interface)[0] - begin[1]
            counted = worker.ledger.sent_bytes() - begin[2]
            if turn:  # the first turn warms up
                report(
                    name=name,
                    seconds=spent[0] / todo["steps"],
                    wire=spent[1] / todo["steps"],
                    ledger=counted / todo["steps"],
                )
    report(parameters=sum(p.numel() for p in build_model(0, characters, shape).parameters()))
    worker.world.barrier().wait()


def bare_all_to_all() -> Any:
    """Return a reduce-scatter by a dense all-to-all, as one would write it by hand."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    class AllToAll(DefaultReduceScatter):
        def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> None:
            received = torch.empty_like(input_tensor)
            dist.all_to_all_single(received, input_tensor, group=group)
            torch.sum(received.view(group.size(), -1), 0, out=output_tensor)
            if op == dist.ReduceOp.AVG:
                output_tensor.div_(group.size())

    return AllToAll()


def _blocks(model: Any) -> list[Any]:
    """Return the modules of the longest list of equal ones: a transformer's layers."""
    from torch import nn

    lists = [list(m) for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential) and len(m) > 1]
    lists += [list(m.layers) for m in model.modules() if isinstance(m, nn.TransformerEncoder)]
    return max((found for found in lists if len({type(m) for m in found}) == 1), key=len, default=[])


# ------------------------------------------------------------------------------------------------ runs


def measure(args: argparse.Namespace, rate: float, console: Console) -> dict[str, Any]:
    from laconic.launch.net import shaped

    todo = {k: getattr(args, k) for k in ("layers", "width", "context", "batch", "steps", "repeats")} | {
        "rows": args.only
    }
    found: dict[str, Any] = {name: [] for name in args.only}
    with tempfile.TemporaryDirectory() as folder, shaped(args.workers, rate, args.delay) as net:
        store = (net.places[0].address, STORE_PORT)
        started = []
        try:
            for rank, home in enumerate(net.places):
                started.append(start(__file__, todo, rank, args.workers, store, home, Path(folder)))
            for facts in reports_of(started, Path(folder)):
                if "parameters" in facts:
                    found["parameters"] = facts["parameters"]
                    break
                found[facts["name"]].append(facts)
                console.print(f"{facts['name']}: {1e3 * facts['seconds']:.0f} ms a step", style="dim")
        finally:
            end(started)
    return found


def table(found: dict[str, Any], rate: float, workers: int) -> Table:
    rows = {name: runs for name, runs in found.items() if name != "parameters"}
    times = {name: [run["seconds"] for run in runs] for name, runs in rows.items()}
    base = statistics.median(times["bare"])
    shown = Table("row", "ms/step", "spread", "times faster than bare", "kB sent/step", "interface over ledger")
    shown.title = f"{workers} workers at {rate / 1e6:g} Mb/s, {found['parameters']:,} parameters"
    for name, runs in rows.items():
        middle = statistics.median(times[name])
        spread = f"{1e3 * min(times[name]):.0f}-{1e3 * max(times[name]):.0f}"
        wire, ledger = (statistics.median([run[key] for run in runs]) for key in ("wire", "ledger"))
        ratio = f"{wire / ledger:.3f}" if name not in ("native", "bare") else ""
        sent = ledger if ratio else wire
        shown.add_row(name, f"{1e3 * middle:.0f}", spread, f"{base / middle:.2f}", f"{sent / 1e3:.0f}", ratio)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e8, 1e9], help="of every link, in bits a second")
    parser.add_argument("--delay", type=float, default=0.0, help="of every link, in seconds")
    parser.add_argument(
        "--only", nargs="+", default=list(ROWS), choices=list(ROWS), help="these rows, `bare` among them"
    )
    parser.add_argument("--steps", type=int, default=6, help="steps of a row in each turn")
    parser.add_argument("--repeats", type=int, default=3, help="turns that are measured")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_worker is not None:
        work(json.loads(args.as_worker))
        return
    if "bare" not in args.only:
        parser.error("`bare` is what the others are compared with: add it to --only")
    console = Console(width=None if sys.stdout.isatty() else 120)
    for rate in args.rates:
        console.print(table(measure(args, rate, console), rate, args.workers))


if __name__ == "__main__":
    main()
