"""Measure what strategies do to the final loss: technique x knob x workers x task, beside `bsp` tuned alike.

    python bench/accuracy.py --out accuracy.csv --minutes 45     # quick by the protocol's measure; every row says so
    python bench/accuracy.py --out accuracy.csv --show
    python bench/accuracy.py --out accuracy.csv --tasks chars --workers 4 --only "bsp / topk(0.01)+ef"

Virtual workers train the examples' models at a fixed global batch, whatever their number: 66 steps of 128 images of
scikit-learn's digits (a convolutional network, 38,282 parameters) or 64 steps of 32 windows of text (a transformer of
0.1 M). Each strategy has three learning rates, factor 2, on seed 0, and further ones while the best lies at an end,
three more at most. The best of these and half of it go on to seeds 1 and 2 (1 alone with more than four workers), and
the better in the mean over the seeds is taken: chosen and reported on the same seeds, for `bsp` as well. Asynchronous
rules also choose a momentum of 0.9 or 0. The validation loss is over that of `bsp`, seed by seed. A fifth of the steps
take three times as long, at random, which affects only asynchronous rules. A loss that is not finite, or more than a
thousand times `bsp`'s, counts as a thousand times. Rows that the output already holds are not measured again; `--start`
puts the rows of docs/measured/compressors.csv (91 compressors, default settings, rates by hand) in front.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "examples")]

STEPS = {"digits": 66, "chars": 64}
GLOBAL_BATCH = {"digits": 128, "chars": 32}
OPTIMIZER = {"digits": "sgd", "chars": "adam"}
CENTRE = {("digits", "sgd"): 0.2, ("digits", "plain"): 0.8, ("chars", "adam"): 4e-3, ("chars", "plain"): 0.2}
SHAPE = {"depth": 2, "width": 64, "context": 64}
MOMENTUM = 0.9
WORST = 1000.0  # times bsp's loss: what a training that diverges is written as
LIMIT = 6  # learning rates


@dataclass(frozen=True)
class Setting:
    """A sentence to be measured; `scale` multiplies its grid of learning rates."""

    sentence: str
    optimizer: str | None = None
    scale: float = 1.0
    served: bool = False  # asynchronous: workers make their gradients in the order of their clocks


CORE = (
    Setting("bsp"),
    Setting("bsp / cast_bf16"),
    Setting("bsp / topk(0.01)+ef"),
    Setting("bsp / topk(0.1)+ef"),
    Setting("bsp / power_sgd(rank=2)+ef"),
    Setting("bsp / power_sgd(rank=4)+ef"),
    Setting("bsp / scaled_sign+ef"),
    Setting("bsp / cast_int8"),
    Setting("local(2)"),
    Setting("local(4)"),
    Setting("local(8)"),
    Setting("local(16)"),
    Setting("local(32)"),
    Setting("diloco(8)"),
    Setting("diloco(32)"),
    Setting("grad_accumulation(2)"),
    Setting("grad_accumulation(4)"),
    Setting("grad_accumulation(8)"),
)
OTHERS = (
    Setting("bsp / cast_fp16"),
    Setting("bsp / cast_fp8"),
    Setting("bsp / power_sgd(rank=1)+ef"),
    Setting("bsp / topk(0.001)+ef"),
    Setting("bsp / dgc(0.01)"),
    Setting("bsp / dgc(0.001)"),
    Setting("bsp / randk(0.1, scaled=false)+ef"),
    Setting("bsp / randk(0.01, scaled=false)+ef"),
    Setting("bsp / qsgd(levels=1)"),
    Setting("bsp / qsgd(levels=7)"),
    Setting("bsp / qsgd(levels=127)"),
    Setting("bsp / terngrad"),
    Setting("bsp / natural_compression"),
    Setting("bsp / mx_block_codecs(mxfp4)+ef"),
    Setting("bsp / three_lc+ef"),
    Setting("sign_sgd", optimizer="plain", scale=0.01),
    Setting("bsp / cast_int8+two_hop(memory=true)+ef"),
    Setting("local(8) / topk(0.1)+ef"),
    Setting("local(8) / cast_bf16"),
    Setting("diloco(8) / cast_int8"),
    Setting("slowmo(8)"),
    Setting("streaming_diloco(8)"),
    Setting("dpsgd / none / gossip / ring"),
    Setting("ssp(3) / none / ps", served=True),
    Setting("asp / none / ps", served=True),
)


@dataclass(frozen=True)
class Measured:
    """A row of the output."""

    technique: str
    sentence: str
    task: str
    workers: int
    loss_ratio: float
    low: float
    high: float
    fewer_bytes: float
    optimizer: str
    baseline_optimizer: str
    rate: float
    rates: int
    seeds: int
    steps: int
    losses: str
    sent_bytes: float
    made: str


def train(setting: Setting, task: str, workers: int, rate: float, momentum: float, seed: int) -> tuple[float, float]:
    """Train, and return the final validation loss and the bytes that a worker sent in all."""
    import laconic
    from laconic.network.network_tree import Network
    from laconic.real.connect import connect
    from laconic.virtual.compute import Compute, Stragglers

    ends: dict[int, float] = {}
    sent: list[float] = []

    def body() -> None:
        worker: Any = connect()
        model, loss_of, judge = TASKS[task](seed, workers)
        optimizer = optimizer_for(setting.optimizer or OPTIMIZER[task], model, rate, momentum)
        wrapped, optimizer = laconic.distribute(model, optimizer, setting.sentence)
        before = worker.ledger.sent_bytes()  # the first parameters, which every strategy sends once
        for step in range(STEPS[task]):
            if setting.served:
                worker.catch_up()  # whoever is behind makes its gradients first
            for group in optimizer.param_groups:
                group["lr"] = rate * (1 - step / STEPS[task])  # ends calmly, so that ends can be compared
            loss_of(wrapped, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        sent.append(worker.ledger.sent_bytes() - before)
        laconic.finish(wrapped, optimizer)
        ends[laconic.rank()] = judge(model)

    compute = Compute(0.01, 0.02, 0.001, (1.0,), Stragglers(0.2, 3.0), seed=seed)
    try:
        laconic.simulate(body, workers, Network.flat(workers, 1e9, 1e-4), compute, seed)
    except (ArithmeticError, ValueError, RuntimeError) as error:
        print(f"  {setting.sentence}: {type(error).__name__}: {error}"[:200], flush=True)
        return math.inf, math.nan
    return (ends[0] if math.isfinite(ends[0]) else math.inf), statistics.mean(sent)


def optimizer_for(name: str, model: Any, rate: float, momentum: float) -> Any:
    import torch

    if name == "adam":
        return torch.optim.AdamW(model.parameters(), lr=rate)
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum if name == "sgd" else 0.0)


Task = tuple[Any, Callable[[Any, int], Any], Callable[[Any], float]]


def digits(seed: int, workers: int) -> Task:
    import torch
    from torch.nn import functional

    import laconic
    from digits import build_model, load_data, validate

    data, validation = load_data(seed)
    images, labels = data.tensors
    mine = torch.arange(laconic.rank(), len(labels), workers)

    def loss_of(model: Any, step: int) -> Any:
        draw = torch.Generator().manual_seed(1000 * seed + step)
        chosen = mine[torch.randperm(len(mine), generator=draw)[: GLOBAL_BATCH["digits"] // workers]]
        return functional.cross_entropy(model(images[chosen]), labels[chosen])

    return build_model(seed), loss_of, lambda model: validate(model, *validation)[0]


def chars(seed: int, workers: int) -> Task:
    import laconic
    from chars import Shape, build_model, default_text, draw_batch, load_text, validate
    from chars import loss_of as nats

    shape = Shape(**SHAPE)
    learned, held_out, characters = load_text(default_text())

    def loss_of(model: Any, step: int) -> Any:
        windows = GLOBAL_BATCH["chars"] // workers
        return nats(model, *draw_batch(learned, shape.context, windows, (seed, step, laconic.rank())))

    def judge(model: Any) -> float:
        return validate(model, held_out, shape.context, 100_000) if laconic.rank() == 0 else 0.0

    return build_model(seed, characters, shape), loss_of, judge


TASKS: dict[str, Callable[[int, int], Task]] = {"digits": digits, "chars": chars}


Runs = dict[int, tuple[float, float]]  # by seed: loss, bytes


def tuned(
    setting: Setting, task: str, workers: int, centre: float, seeds: Sequence[int]
) -> tuple[float, float, int, Runs]:
    """Return learning rate, momentum, how many were tried, and the runs. The best on the first seed may be at the edge
    of what still converges, so it and half of it are trained on all seeds, and the better in the mean is taken."""
    first, *others = seeds
    tried = 0
    ends: dict[tuple[float, float], Runs] = {}
    for momentum in (MOMENTUM, 0.0) if setting.served else (MOMENTUM,):
        runs: dict[float, tuple[float, float]] = {}
        asked = [centre / 2, centre, centre * 2]
        while asked:
            runs |= {rate: train(setting, task, workers, rate, momentum, first) for rate in asked}
            asked = further({rate: loss for rate, (loss, _) in runs.items()})
        best = min(runs, key=lambda rate: runs[rate][0])
        tried += len(runs)
        for rate in {best, best / 2} & set(runs):
            rest = {seed: train(setting, task, workers, rate, momentum, seed) for seed in others}
            ends[rate, momentum] = {first: runs[rate], **rest}
    rate, momentum = min(ends, key=lambda pair: sum(loss for loss, _ in ends[pair].values()))
    return rate, momentum, tried, ends[rate, momentum]


def further(losses: dict[float, float]) -> list[float]:
    """Return the next rate beyond the end of the grid at which the best lies, while more may be tried."""
    best = min(losses, key=lambda rate: losses[rate])
    if len(losses) >= LIMIT or math.isinf(losses[best]):
        return [min(losses) / 4] if math.isinf(losses[best]) and len(losses) < LIMIT else []
    return [best / 2] if best == min(losses) else [best * 2] if best == max(losses) else []


def measure(setting: Setting, task: str, workers: int, known: Sequence[Measured]) -> Measured:
    from laconic.experiments.statistics import bootstrap_ratio

    optimizer = setting.optimizer or OPTIMIZER[task]
    earlier = [row.rate for row in known if row.sentence == setting.sentence and row.task == task and row.rates]
    centre = earlier[-1] if earlier else CENTRE[task, optimizer] * setting.scale
    seeds = (0, 1, 2) if workers <= 4 else (0, 1)
    rate, momentum, rates, runs = tuned(setting, task, workers, centre, seeds)
    base = baseline(known, task, workers)
    theirs = dict(zip(seeds, map(float, base.losses.split()), strict=True)) if base else {s: runs[s][0] for s in seeds}
    ours = {seed: min(runs[seed][0], WORST * theirs[seed]) for seed in seeds}
    ratio = bootstrap_ratio(ours, theirs)
    sent = statistics.mean(run[1] for run in runs.values())
    assert ratio is not None
    return Measured(
        technique="+".join(names(setting.sentence)),
        sentence=setting.sentence,
        task=task,
        workers=workers,
        loss_ratio=rounded(ratio.middle),
        low=rounded(ratio.low),
        high=rounded(ratio.high),
        fewer_bytes=rounded((base.sent_bytes if base else sent) / sent),
        optimizer=optimizer if momentum == MOMENTUM or optimizer != "sgd" else "plain",
        baseline_optimizer=OPTIMIZER[task],
        rate=rate,
        rates=rates,
        seeds=len(seeds),
        steps=STEPS[task],
        losses=" ".join(f"{loss:.5g}" for loss in ours.values()),
        sent_bytes=rounded(sent),
        made="quick: tuned",
    )


def baseline(known: Sequence[Measured], task: str, workers: int) -> Measured | None:
    return next((r for r in known if (r.sentence, r.task, r.workers) == ("bsp", task, workers) and r.rates), None)


def names(sentence: str) -> list[str]:
    """Return the words that change the mathematics, in canonical form."""
    from laconic.strategy import Sentence, Strategy

    strategy = Strategy.parse(sentence)
    if not isinstance(strategy, Sentence):
        return [sentence]
    chain = [word.name for word in strategy.compression if word.name != "none"]
    return chain if strategy.sync.name == "bsp" and chain else [strategy.sync.name, *chain]


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def from_compressors(path: Path) -> Iterator[Measured]:
    """Return the quick table of all compressors, in this table's columns."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            for task in ("digits", "chars"):
                if not row[f"{task}_ratio"]:
                    continue
                spread = [min(float(row[f"{task}_{name}"]), WORST) for name in ("ratio", "low", "high")]
                optimizer = row[f"{task}_optimizer"]
                yield Measured(
                    row["technique"],
                    row["sentence"],
                    task,
                    4,
                    *spread,
                    fewer_bytes=float(row[f"{task}_fewer"]),
                    optimizer=optimizer,
                    baseline_optimizer=optimizer,
                    rate=float(row[f"{task}_rate"]),
                    rates=0,
                    seeds=3 if task == "digits" else 2,
                    steps=STEPS[task],
                    losses="",
                    sent_bytes=math.nan,
                    made="quick: rates by hand",
                )


def read(path: Path) -> list[Measured]:
    kinds: dict[str, Any] = {"int": int, "float": float, "str": str}
    with path.open(newline="") as file:
        return [
            Measured(**{f.name: kinds[f.type](row[f.name]) for f in fields(Measured)}) for row in csv.DictReader(file)
        ]


def append(path: Path, rows: Sequence[Measured]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Measured)], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(map(asdict, rows))


def order(tasks: Sequence[str], workers: Sequence[int]) -> Iterator[tuple[Setting, str, int]]:
    """Order the cells by what the planner proposes most: the fewest workers, the next number, some of the most, then
    the rest."""
    few, *more = workers
    parts = [(CORE, few), *((CORE[:: 1 + k], number) for k, number in enumerate(more)), (OTHERS, few)]
    parts += [(settings, number) for number in more for settings in (CORE, OTHERS)]
    for task in tasks:
        yield from dict.fromkeys((setting, task, number) for settings, number in parts for setting in settings)


def show(rows: Sequence[Measured]) -> None:
    """Print the tuned rows as a table: strategies, then the loss with each number of workers."""
    tuned = [row for row in rows if row.rates]
    places = sorted({(row.task, row.workers) for row in tuned})
    print("| strategy | fewer bytes | " + " | ".join(f"{task}, {workers} workers" for task, workers in places) + " |")
    print("| --- " * (2 + len(places)) + "|")
    for sentence in dict.fromkeys(row.sentence for row in tuned if row.sentence != "bsp"):
        own = {(row.task, row.workers): row for row in tuned if row.sentence == sentence}
        cells = [f"{r.loss_ratio:.2f} [{r.low:.2f}–{r.high:.2f}]" if (r := own.get(p)) else "" for p in places]
        print(f"| `{sentence}` | {next(iter(own.values())).fewer_bytes:.1f} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("accuracy.csv"), help="rows are appended here")
    parser.add_argument("--tasks", default="digits", help="some of digits, chars, separated by commas")
    parser.add_argument("--workers", default="4,8,16", help="numbers of workers, separated by commas")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no row is begun after so many")
    parser.add_argument("--only", action="append", default=[], help="this sentence; repeat for more; bsp comes along")
    parser.add_argument("--start", type=Path, help="a table of bench/compressors.py to begin with")
    parser.add_argument("--show", action="store_true", help="print what the output holds as a table, train nothing")
    args = parser.parse_args()
    if args.show:
        show(read(args.out))
        return
    import torch

    torch.set_num_threads(1)
    if args.start and not args.out.exists():
        append(args.out, list(from_compressors(args.start)))
    known = read(args.out) if args.out.exists() else []
    done = {(row.sentence, row.task, row.workers) for row in known if row.rates}
    wanted = [
        (setting, task, workers)
        for setting, task, workers in order(args.tasks.split(","), list(map(int, args.workers.split(","))))
        if (setting.sentence, task, workers) not in done
        if not args.only or setting.sentence in (*args.only, "bsp")
    ]
    begin = time.monotonic()
    for number, (setting, task, workers) in enumerate(wanted, 1):
        spent = (time.monotonic() - begin) / 60
        if spent > args.minutes:
            print(f"stopped after {spent:.0f} min; {len(wanted) - number + 1} rows are left for another time")
            break
        try:
            row = measure(setting, task, workers, known)
        except KeyboardInterrupt:
            print(f"interrupted; {len(wanted) - number + 1} rows are left, the same command goes on")
            break
        known.append(row)
        append(args.out, [row])
        print(
            f"{number}/{len(wanted)}  {spent:.1f} min  {task} x {workers}  {setting.sentence}: {row.loss_ratio:.3f} "
            f"[{row.low:.3f}–{row.high:.3f}], {row.fewer_bytes:.1f} times fewer bytes, rate {row.rate:g}",
            flush=True,
        )


if __name__ == "__main__":
    main()
