"""Two distant sites: rules that seldom wait for the link between them, at equal samples.

    python bench/two_sites.py --folder two_sites            # needs root, `ip` and `tc`; two hours on two cores
    python bench/two_sites.py --only streaming              # one row beside bsp
    python bench/two_sites.py --only sites_streaming --period 8 --sentence "diloco(8) / int4+ef"    # and one of yours

Four workers train the character transformer, two at each site: neighbours at the machine's speed, 200 Mb/s and a round
trip of 50 ms between the sites. Every row trains at every learning rate and is shown at its best, since an untuned
`bsp` is easily beaten. At a rate all rows start from the same model, after some steps of `bsp` as in the paper, and
draw the same batches. Busy is 1 - waited/total, where waited is the time a worker was blocked for others. Rules that
communicate in every step learn the same over any links: they train without them for their loss, and make a few steps
over them for their time. The command fails unless a rule is busy for 95 % of the time and ends within 1 % of bsp's
validation loss.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "examples")]

from workers import STORE_PORT, end, free_port, report, reports_of, start  # noqa: E402

WORKERS, SITE_WORKERS = 4, 2
UPLINK_BITS_PER_SECOND, DELAY_SECONDS = 2e8, 0.025
BUSY, LOSS = 0.95, 1.01
TIMED_STEPS, WARM_STEPS = 30, 5
ROWS = {
    "bsp": "bsp",
    "ddp16": "torch:ddp16",
    "diloco": "diloco(period={period})",
    "diloco4": "diloco(period={period}) / e3m0",
    "sites": "[bsp]@node > [diloco(period={period})]@site",
    "streaming": "streaming_diloco(period={period}, overlap=4, merge=0) / e3m0",
    "late": "osp(share=1) / int8 / allreduce",
    "late4": "osp(share=1) / int4+ef / allreduce",
    "later": "osp(share=1, delay=2) / int8 / allreduce",
    "latest": "osp(share=1, delay=3) / int8 / allreduce",
    "later4": "osp(share=1, delay=2) / int4 / allreduce",
    "latest4": "osp(share=1, delay=3) / int4 / allreduce",
    "sites_streaming": "[bsp]@node > [streaming_diloco(period={period}, overlap=4, merge=0.5) / int4+ef]@site",
}
EVERY_STEP = ("bsp", "ddp16", "late", "late4", "later", "latest", "later4", "latest4")


@dataclass(frozen=True)
class Training:
    """The task of one set of workers."""

    strategy: str
    first: int  # step, of those the schedule spans
    steps: int
    span: int
    model: str  # where to begin; written when `first` is 0
    seed: int
    batch: int
    rate: float
    validate: bool
    layers: int
    width: int
    context: int


# ------------------------------------------------------------------------------------------------ in a worker


def work(training: Training) -> None:
    import torch

    import laconic
    from chars import Shape, build_model, default_text, draw_batch, load_text, loss_of, validate
    from laconic.launch.net import interface_bytes
    from laconic.real.connect import connect

    t, text = training, default_text()
    shape = Shape(t.layers, t.width, t.context)
    learned, held_out, characters = load_text(text if text.is_file() else HERE.parent / "examples" / "chars.py")
    model = build_model(t.seed, characters, shape)
    bare = model
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=t.rate)
    if t.first:
        saved = torch.load(t.model, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    model, optimizer = laconic.distribute(model, optimizer, t.strategy)
    worker, interface = connect(), os.environ["GLOO_SOCKET_IFNAME"]
    begin = [0.0, 0.0, 0.0]
    for step in range(t.first, t.first + t.steps):
        if step == t.first + (WARM_STEPS if t.steps == WARM_STEPS + TIMED_STEPS else 0):
            worker.world.barrier().wait()
            begin = [time.perf_counter(), worker.waited_seconds, interface_bytes(interface)[0]]
        for group in optimizer.param_groups:
            group["lr"] = t.rate * scheduled(step, t.span)
        inputs = draw_batch(learned, shape.context, t.batch, (t.seed, step, laconic.rank()))
        loss_of(model, *inputs).backward()
        optimizer.step()
        optimizer.zero_grad()
    now = [time.perf_counter(), worker.waited_seconds, interface_bytes(interface)[0]]
    mine = torch.tensor([b - a for a, b in zip(begin, now, strict=True)], dtype=torch.float64)
    rows = worker.world.all_gather(mine).wait().view(-1, 3).tolist()
    laconic.finish(model, optimizer)
    if not t.first and laconic.rank() == 0:
        torch.save({"model": bare.state_dict(), "optimizer": optimizer.base.state_dict()}, t.model)
    nats = validate(bare, held_out, shape.context, 100_000) if t.validate and laconic.rank() == 0 else None
    report(rows=rows, nats=nats, parameters=sum(p.numel() for p in bare.parameters()))
    worker.world.barrier().wait()


def scheduled(step: int, span: int) -> float:
    """Return a short warm-up followed by a cosine to a tenth: one schedule over all steps, whatever the rounds."""
    warm, through = min(1.0, (step + 1) / 50), min(1.0, step / span)
    return warm * (0.55 + 0.45 * math.cos(math.pi * through))


# ------------------------------------------------------------------------------------------------ runs


def run(training: Training, net: Any) -> dict[str, Any]:
    """Run four processes in their places of the network or on the loopback, and return their results."""
    with tempfile.TemporaryDirectory() as folder:
        store = ("127.0.0.1", free_port()) if net is None else (net.places[0].address, STORE_PORT)
        homes = [None] * WORKERS if net is None else net.places
        sites = {"LOCAL_WORLD_SIZE": str(SITE_WORKERS)}
        started = []
        try:
            for rank, home in enumerate(homes):
                started.append(start(__file__, asdict(training), rank, WORKERS, store, home, Path(folder), sites))
            facts = next(reports_of(started, Path(folder)))
            for worker in started:
                worker.wait(60)
        finally:
            end(started)
    total, waited, sent = zip(*facts["rows"], strict=True)
    timed = TIMED_STEPS if training.steps == WARM_STEPS + TIMED_STEPS else training.steps
    return {
        "loss": facts["nats"],
        "parameters": facts["parameters"],
        "step_seconds": max(total) / timed,
        "busy": 1 - sum(waited) / sum(total),
        "least_busy": 1 - max(w / t for w, t in zip(waited, total, strict=True)),
        "sent_bytes_per_step": sum(sent) / WORKERS / timed,
    }


def predict(training: Training, compute_seconds: float) -> float:
    """Predict the busy share on virtual workers: the same tensors, the step time of workers that do not communicate,
    and no learning."""
    import torch

    import laconic
    from chars import Shape, build_model
    from laconic.network.network_tree import UNLIMITED_BITS_PER_SECOND, Level, Network
    from laconic.real.connect import connect
    from laconic.virtual.compute import Compute

    network = Network(
        WORKERS, (Level(1, UNLIMITED_BITS_PER_SECOND), Level(SITE_WORKERS, UPLINK_BITS_PER_SECOND, DELAY_SECONDS))
    )
    compute = Compute(compute_seconds / 3, 2 * compute_seconds / 3)

    def body() -> tuple[float, float]:
        model: Any = build_model(0, 65, Shape(training.layers, training.width, training.context))
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.0), training.strategy)
        worker = connect()
        seconds, waited = worker.clock_seconds(), worker.waited_seconds
        for _ in range(training.steps):
            model(torch.zeros(1, 1, dtype=torch.long)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return worker.clock_seconds() - seconds, worker.waited_seconds - waited

    seconds, waited = zip(*laconic.simulate(body, WORKERS, network, compute).results, strict=True)
    return 1 - sum(waited) / sum(seconds)


class Notes:
    """A folder of what has been measured: after an interruption, the same command continues from there."""

    def __init__(self, folder: Path, settings: dict[str, Any], console: Console) -> None:
        self.folder, self._console = folder, console
        folder.mkdir(parents=True, exist_ok=True)
        if self.once("settings", lambda: settings) != settings:
            raise SystemExit(f"{folder} holds runs with other settings: give another --folder, or remove it")

    def once(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        path = self.folder / f"{re.sub(r'[^-.=a-z0-9]+', '_', name)}.json"
        if not path.exists():
            found = make()
            path.write_text(json.dumps(found, indent=1) + "\n")
        row: dict[str, Any] = json.loads(path.read_text())
        if "busy" in row:
            loss = "" if row["loss"] is None else f", loss {row['loss']:.4f}"
            line = f"{name}: {1e3 * row['step_seconds']:.0f} ms per step, busy {row['busy']:.1%}{loss}"
            self._console.print(line, style="dim", markup=False)
        return row


def over_links(training: Training) -> dict[str, Any]:
    from laconic.launch.net import shaped

    with shaped(WORKERS, None, DELAY_SECONDS, SITE_WORKERS, UPLINK_BITS_PER_SECOND) as net:
        return run(training, net)


def measure(args: argparse.Namespace, notes: Notes) -> dict[str, Any]:
    """Train every row at every rate, each rate with a beginning of its own; return each row at its best rate."""
    sentences = ROWS | {sentence: sentence for sentence in args.sentence}
    names = [name for name in sentences if name in ("bsp", *args.sentence, *(args.only or ROWS))]
    tried: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for rate in args.rates:
        common = beginning(args, notes, rate)
        notes.once(f"beginning-{rate:g}", partial(run, common, None))
        rest = replace(common, first=args.pretrain, steps=args.steps)
        short = replace(rest, steps=WARM_STEPS + TIMED_STEPS, validate=False)
        alone = notes.once("alone", partial(run, replace(short, strategy="diloco(period=1000000)"), None))
        for name in names:
            training = replace(rest, strategy=sentences[name].format(period=args.period))
            if name in EVERY_STEP:
                row = notes.once(f"{name}-steps", partial(over_links, replace(short, strategy=training.strategy)))
                row["loss"] = notes.once(f"{name}-{rate:g}-without-links", partial(run, training, None))["loss"]
            else:
                row = notes.once(f"{name}-{args.period}-{rate:g}", partial(over_links, training))
            if name == "ddp16":  # it waits where laconic cannot see it
                row["busy"] = row["least_busy"] = min(1.0, alone["step_seconds"] / row["step_seconds"])
            tried[name].append({"strategy": training.strategy, "rate": rate, **row})
    rows = {name: min(found, key=lambda row: row["loss"]) for name, found in tried.items()}
    for name, row in rows.items():
        steps = 10 if name in EVERY_STEP else min(args.steps, 2 * args.period)
        training = replace(rest, strategy=row["strategy"], steps=steps)
        row["predicted_busy"] = None if name == "ddp16" else predict(training, alone["step_seconds"])
        row["edge"] = row["rate"] in (min(args.rates), max(args.rates))
    return {"alone": alone, "rows": rows}


def beginning(args: argparse.Namespace, notes: Notes, rate: float) -> Training:
    """Make the first steps, which all rows of a rate have in common."""
    model = str(notes.folder.resolve() / f"model-{rate:g}.pt")
    shape = {name: getattr(args, name) for name in ("seed", "batch", "layers", "width", "context")}
    return Training("bsp", 0, args.pretrain, args.pretrain + args.steps, model, rate=rate, validate=True, **shape)


def table(result: dict[str, Any]) -> Table:
    rows, alone = result["rows"], result["alone"]
    shown = Table("strategy", "busy", "least busy", "predicted", "ms/step", "MB/step", "rate", "loss", "over bsp")
    shown.title = f"Two sites of two workers, 200 Mb/s and 50 ms between them, {alone['parameters']:,} parameters"
    for row in rows.values():
        predicted = "" if row["predicted_busy"] is None else f"{row['predicted_busy']:.1%}"
        more = f"{100 * (row['loss'] / rows['bsp']['loss'] - 1):+.2f} %"
        busy = [f"{row[key]:.1%}" for key in ("busy", "least_busy")]
        sizes = [f"{1e3 * row['step_seconds']:.0f}", f"{row['sent_bytes_per_step'] / 1e6:.3f}"]
        sizes.append(f"{row['rate']:g}" + "*" * row["edge"])
        shown.add_row(escape(row["strategy"]), *busy, predicted, *sizes, f"{row['loss']:.4f}", more)
    r = rows["bsp"]["step_seconds"] / alone["step_seconds"] - 1
    spent = f"{1e3 * alone['step_seconds']:.0f} ms per step without communication; r of bsp = {r:.1f}"
    shown.caption = f"{spent}; one seed; * at the edge of the rates tried"
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=[name for name in ROWS if name != "bsp"], nargs="+", help="beside bsp")
    parser.add_argument("--sentence", action="append", default=[], help="another row, which is trained over the links")
    parser.add_argument("--steps", type=int, default=1200, help="after the common beginning (default 1200)")
    parser.add_argument("--pretrain", type=int, default=400, help="steps of the common beginning (default 400)")
    parser.add_argument("--period", type=int, default=20, help="DiLoCo's local steps in a round (default 20)")
    parser.add_argument("--batch", type=int, default=8, help="windows per worker and step (default 8)")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3, 8e-3], help="of AdamW, for every row"
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep every number here, and go on from what is there already")
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_worker is not None:
        work(Training(**json.loads(args.as_worker)))
        return
    if args.steps % args.period:
        parser.error(f"--steps {args.steps} is no number of whole rounds of {args.period}")
    console = Console(width=None if sys.stdout.isatty() else 140)  # a file is read with all columns
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through the blocks that end workers and networks
    settings = {
        k: v for k, v in vars(args).items() if k not in ("folder", "only", "sentence", "period", "rates", "as_worker")
    }
    with tempfile.TemporaryDirectory() as beside:
        result = measure(args, Notes(args.folder or Path(beside), settings, console))
    console.print(table(result))
    rows = result["rows"]
    kept = [n for n in rows if rows[n]["busy"] >= BUSY]
    kept = [n for n in kept if rows[n]["loss"] <= LOSS * rows["bsp"]["loss"]]
    console.print(f"busy ≥ {BUSY:.0%} and within {LOSS - 1:.0%} of bsp's loss: {', '.join(kept) or 'none'}")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
