"""Measure every compressor on both examples: loss at equal samples, bytes, the cost of encoding, memory.

    python bench/compressors.py --folder compressors              # quick: own learning rates, few seeds; says so
    python bench/compressors.py --folder compressors --protocol   # seven rates on seeds 0-1, reported on seeds 2-6
    python bench/compressors.py --folder compressors --only topk,qsgd

Four virtual workers train a small network on scikit-learn's digits and a character transformer of 0.1 M parameters (0.8
M by the protocol); `compressors.toml` names the sentence in which each technique is trained. Loss is over that of `bsp`
with the same optimizer at equal samples, paired by seed. Encoding and decoding are timed alone, on a matrix of a
million elements among four; memory is what a worker keeps, and what it needs on top while it encodes and decodes, over
the size of that matrix. What a folder already holds is not measured again. The table goes to `table.csv` there.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import gc
import json
import math
import multiprocessing
import statistics
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "examples")]

WORKERS, SIDE, WITHIN = 4, 1024, 1.02
EXAMPLES = {"digits": "sgd", "chars": "adam", "chars-small": "adam"}  # and whose optimizer is whose
RATES = {  # the best of three or four for bsp, on seed 0
    "digits": {"sgd": 0.1, "plain": 0.8, "adam": 6e-3, "lamb": 3e-2, "muon": 1e-2},
    "chars": {"sgd": 0.1, "plain": 0.2, "adam": 4e-3, "lamb": 2e-2, "muon": 2e-2},
    "chars-small": {"sgd": 0.1, "plain": 0.2, "adam": 2e-3, "lamb": 1e-2, "muon": 1e-2},
}
CHUNK = 60
STEPS = {"digits": 66, "chars": 64, "chars-small": 384}
SIZE = {"depth": 2, "width": 64, "context": 64}  # of the transformer, 0.1 M parameters; the protocol takes 0.8 M
QUICK_SEEDS = {"digits": (2, 3, 4), "chars": (2, 3), "chars-small": (2, 3)}
CHOOSING, REPORTING, GRID = (0, 1), (2, 3, 4, 5, 6), tuple(2.0**k for k in range(-3, 4))


@dataclass(frozen=True)
class Row:
    """A technique as it is trained."""

    name: str
    family: str
    sentence: str
    optimizer: str | None = None
    rate: tuple[float, float] = (1.0, 1.0)
    why: str = ""

    def optimizer_on(self, example: str) -> str:
        return self.optimizer or EXAMPLES[example]

    def rate_on(self, example: str) -> float:
        return self.rate[0 if example == "digits" else 1]


def read_rows(path: Path = HERE / "compressors.toml") -> list[Row]:
    rows = []
    for family, members in tomllib.loads(path.read_text()).items():
        for name, given in members.items():
            if isinstance(given, dict):
                stated = {"sentence": name} | given
                rows.append(Row(name, family, **{k: tuple(v) if k == "rate" else v for k, v in stated.items()}))
    return rows


@dataclass(frozen=True)
class Training:
    sentence: str
    example: str
    optimizer: str
    rate: float
    seed: int
    steps: int


# ------------------------------------------------------------------------------------------------ learning


def train(training: Training) -> dict[str, Any]:
    """Train in a process of the pool; return the final loss, and the bytes that a worker sent in a step."""
    import torch

    import laconic

    torch.set_num_threads(1)
    begin = time.process_time()
    ends = []

    def body() -> None:
        ends.append((digits if training.example == "digits" else chars)(training))

    try:
        made = laconic.simulate(body, WORKERS, seed=training.seed)
    except Exception as error:  # a technique that fails is a line of the table, not the end of it
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    sent = statistics.mean(worker.ledger.sent_bytes() for worker in made.workers) / training.steps
    loss = ends[0]
    return {"loss": loss if math.isfinite(loss) else 1e9, "sent": sent, "seconds": time.process_time() - begin}


def optimizer_for(training: Training, model: Any) -> Any:
    import torch

    import laconic.optim

    parameters, rate = model.parameters(), training.rate
    if training.optimizer == "adam":
        return torch.optim.AdamW(parameters, lr=rate)
    if training.optimizer == "lamb":
        return laconic.optim.LAMB(parameters, lr=rate, bias_correction=False, ratio_bounds=(0.01, 10))
    if training.optimizer == "muon":
        return laconic.optim.Muon(laconic.optim.matrices_apart(model), lr=rate)
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9 if training.optimizer == "sgd" else 0.0)


def fit(training: Training, model: Any, loss_of: Callable[[Any, int], Any], judge: Callable[[Any], float]) -> float:
    """Train in a plain loop and return the loss of the workers' mean model."""
    import laconic

    bare, (model, optimizer) = (
        model,
        laconic.distribute(model, optimizer_for(training, model), training.sentence),
    )
    for step in range(training.steps):
        for group in optimizer.param_groups:
            group["lr"] = training.rate * (1 - step / training.steps)  # ends calmly, so that ends can be compared
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    laconic.finish(model, optimizer)
    return judge(bare)


def digits(training: Training) -> float:
    import torch
    from torch.nn import functional

    import laconic
    from digits import build_model, load_data, validate

    data, validation = load_data(training.seed)
    images, labels = data.tensors
    mine = torch.arange(laconic.rank(), len(labels), WORKERS)

    def loss_of(model: Any, step: int) -> Any:
        draw = torch.Generator().manual_seed(1000 * training.seed + step)
        chosen = mine[torch.randperm(len(mine), generator=draw)[:32]]
        return functional.cross_entropy(model(images[chosen]), labels[chosen])

    return fit(training, build_model(training.seed), loss_of, lambda model: validate(model, *validation)[0])


def chars(training: Training) -> float:
    import laconic
    from chars import SIZES, Shape, build_model, default_text, draw_batch, load_text, validate
    from chars import loss_of as nats

    shape, windows = (SIZES["small"], 2) if training.example == "chars-small" else (Shape(**SIZE), 8)
    learned, held_out, characters = load_text(default_text())

    def loss_of(model: Any, step: int) -> Any:
        return nats(model, *draw_batch(learned, shape.context, windows, (training.seed, step, laconic.rank())))

    def judge(model: Any) -> float:
        return validate(model, held_out, shape.context, 100_000) if laconic.rank() == 0 else 0.0

    return fit(training, build_model(training.seed, characters, shape), loss_of, judge)


# ------------------------------------------------------------------------------------------------ costs


def cost(sentence: str) -> dict[str, Any]:
    """Time the chain alone, on a matrix with heavy tails, after the steps it needs to settle; return None where it
    exchanges with one neighbour only."""
    import torch

    from laconic.compression.optional import settling_of
    from laconic.testing.in_memory import Stopwatch, meet, spec_of

    torch.set_num_threads(1)
    _, made = compressor_of(sentence)
    if made is None:
        return {}
    draw = torch.Generator().manual_seed(1)
    inputs = [torch.randn(SIDE, SIDE, generator=draw) ** 3 for _ in range(WORKERS)]
    spec, settling = spec_of(inputs[0]), settling_of(made)
    states = [made.init(spec) for _ in inputs]
    encode, decode, handed = [], [], []
    for step in range(settling + 5):
        watch = Stopwatch()
        states = [outcome.state for outcome in meet(made, inputs, states, step, watch=watch)]
        if step > settling:
            encode.append(watch.encode_seconds)
            decode.append(watch.decode_seconds)
            handed.append(sum(watch.payload_bytes))
        if sum(encode) + sum(decode) > 10:  # slow ones need not be repeated
            break
    kept = sum(x.nbytes for x in states[0].values()) / spec.nbytes
    own = {key: value.clone() for key, value in states[0].items()}
    peak = working_memory(lambda: run_alone(made, inputs[0], own, settling + 5)) / spec.nbytes
    times = {"encode": statistics.median(encode), "decode": statistics.median(decode)}
    return times | {"handed": statistics.median(handed) / spec.numel * 8, "kept": kept, "peak": peak}


def run_alone(made: Any, x: Any, state: Any, step: int) -> None:
    from laconic.runtime.meeting import Meeting
    from laconic.testing.in_memory import answer_requests

    exchange, answer = made.exchange(x, state, Meeting(0, 1, step, "x")), None
    while True:
        try:
            answer = answer_requests([exchange.send(answer)])[0]
        except StopIteration:
            return


def working_memory(act: Callable[[], None]) -> float:
    """Return the peak memory in bytes beyond that at the start, as the operating system recorded it."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(-3, 65536)  # M_MMAP_THRESHOLD: what is freed goes back at once
    act()
    gc.collect()
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    act()
    peak = _status("VmHWM")
    libc.mallopt(-3, 32 << 20)
    return max(0.0, peak - before)


def _status(name: str) -> float:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name))
    return 1024.0 * int(line.split()[1])


# ------------------------------------------------------------------------------------------------ all of it


class Kept:
    """Results by their settings, in a file that is appended to, so that an interrupted table is continued."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else ()
        self._known = {json.dumps(key, sort_keys=True): result for key, result in map(json.loads, lines)}

    def get(self, key: Any) -> dict[str, Any] | None:
        return self._known.get(json.dumps(key, sort_keys=True))

    def put(self, key: Any, result: dict[str, Any]) -> None:
        self._known[json.dumps(key, sort_keys=True)] = result
        with self._path.open("a") as file:
            file.write(json.dumps([key, result]) + "\n")


def carry_out(act: Callable[[Any], dict[str, Any]], wanted: Sequence[Any], kept: Kept, processes: int) -> None:
    missing = [item for item in dict.fromkeys(wanted) if kept.get(_key(item)) is None]
    begin = time.monotonic()
    for first in range(0, len(missing), CHUNK):  # fresh processes now and then: long ones grow
        chunk = missing[first : first + CHUNK]
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            running: dict[Future[dict[str, Any]], Any] = {pool.submit(act, item): item for item in chunk}
            for done, future in enumerate(as_completed(running), first + 1):
                kept.put(_key(running[future]), result := future.result())
                shown = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in result.items())
                spent = time.monotonic() - begin
                print(f"{done}/{len(missing)}  {spent:.0f} s  {running[future]}  {shown}", flush=True)


def _key(item: Any) -> Any:
    return asdict(item) if isinstance(item, Training) else {"cost": item}


def trainings(
    row: Row, example: str, scale: float, seeds: Iterable[int], sentence: str | None = None
) -> list[Training]:
    optimizer = row.optimizer_on(example)
    rate = RATES[example][optimizer] * scale
    return [Training(sentence or row.sentence, example, optimizer, rate, seed, STEPS[example]) for seed in seeds]


def chosen(row: Row, example: str, kept: Kept, sentence: str | None = None) -> float:
    """Return the scale of the learning rate with the least loss over the choosing seeds."""

    def loss(scale: float) -> float:
        found = [kept.get(_key(t)) for t in trainings(row, example, scale, CHOOSING, sentence)]
        return sum(math.inf if f is None or "error" in f else f["loss"] for f in found)

    centre = row.rate_on(example) if sentence is None else 1.0
    return min((centre * step for step in GRID), key=loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("compressors"), help="where results are kept")
    parser.add_argument("--protocol", action="store_true", help="seven rates on seeds 0-1, five other seeds reported")
    parser.add_argument("--only", default="", help="techniques, separated by commas")
    parser.add_argument("--examples", help="some of digits, chars, chars-small, separated by commas")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    only = set(filter(None, args.only.split(",")))
    rows = [row for row in read_rows() if not only or row.name in only]
    examples = args.examples.split(",") if args.examples else ["digits", "chars-small" if args.protocol else "chars"]
    args.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(args.folder / "results.jsonl")
    carry_out(cost, [row.sentence for row in rows], kept, 1)
    work: list[Training] = []
    if args.protocol:
        for row in rows:
            for example in examples:
                for step in GRID:
                    work += trainings(row, example, row.rate_on(example) * step, CHOOSING)
                    work += trainings(row, example, step, CHOOSING, "bsp")
        carry_out(train, work, kept, args.processes)
    plans = {(row, example): plan(row, example, args.protocol, kept) for row in rows for example in examples}
    carry_out(train, [t for pair in plans.values() for side in pair for t in side], kept, args.processes)
    table = [line(row, {example: plans[row, example] for example in examples}, kept) for row in rows]
    show(table, examples, args.protocol)
    with (args.folder / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


def plan(row: Row, example: str, protocol: bool, kept: Kept) -> tuple[list[Training], list[Training]]:
    """Return the trainings that are reported: the technique's and the baseline's, with the same seeds."""
    seeds = REPORTING if protocol else QUICK_SEEDS[example]
    own, bsp = (
        (chosen(row, example, kept), chosen(row, example, kept, "bsp")) if protocol else (row.rate_on(example), 1)
    )
    return trainings(row, example, own, seeds), trainings(row, example, bsp, seeds, "bsp")


def line(row: Row, plans: dict[str, tuple[list[Training], list[Training]]], kept: Kept) -> dict[str, Any]:
    from laconic.experiments.statistics import bootstrap_ratio

    costs = kept.get(_key(row.sentence)) or {}
    out: dict[str, Any] = {"technique": row.name, "family": row.family, "sentence": row.sentence}
    for name, unit in (("encode", 1e3), ("decode", 1e3), ("handed", 1.0), ("kept", 1.0), ("peak", 1.0)):
        out[name] = f"{costs[name] * unit:.4g}" if name in costs else ""
    worst, errors = 0.0, []
    for example, (own, bsp) in plans.items():
        ours, theirs = ({t.seed: kept.get(_key(t)) or {} for t in side} for side in (own, bsp))
        errors += [of["error"] for of in ours.values() if "error" in of]
        if errors or any("loss" not in of for of in (*ours.values(), *theirs.values())):
            out |= {f"{example}_{name}": "" for name in ("ratio", "low", "high", "fewer", "optimizer", "rate")}
            worst = math.inf
            continue
        ratio = bootstrap_ratio(*({seed: of["loss"] for seed, of in side.items()} for side in (ours, theirs)))
        assert ratio is not None
        fewer = sum(of["sent"] for of in theirs.values()) / sum(of["sent"] for of in ours.values())
        numbers = {"ratio": ratio.middle, "low": ratio.low, "high": ratio.high, "fewer": fewer, "rate": own[0].rate}
        out |= {f"{example}_{name}": f"{number:.4g}" for name, number in numbers.items()}
        out[f"{example}_optimizer"] = own[0].optimizer
        worst = max(worst, ratio.high)
    out["within"] = "yes" if worst <= WITHIN else "no"
    out["why"] = errors[0] if errors else "" if worst <= WITHIN else row.why or reason(row, out, list(plans))
    return out


def reason(row: Row, out: dict[str, Any], examples: Iterable[str]) -> str:
    """Return why a technique ends above the baseline, as far as its claims explain it. The quick form's rates are the
    baseline's."""
    import torch

    from laconic.compression.error_feedback import Remembering
    from laconic.compression.optional import contraction_of, variance_of
    from laconic.values.tensor_spec import TensorSpec

    above = [e for e in examples if float(out[f"{e}_high"]) > WITHIN]
    untuned = f"not tuned, and only {' and '.join(str(STEPS[e]) for e in above)} steps"
    if any(float(out[f"{e}_ratio"]) > 1e6 for e in above):
        return f"diverges at this rate of learning: {untuned}"
    if all(float(out[f"{e}_low"]) <= 1 for e in above):
        return "not told apart from bsp: seeds spread more than 2 %"
    strategy, made = compressor_of(row.sentence)
    if strategy.sync.technique.replicas_differ:
        return f"workers hold different models between meetings; {untuned}"
    spec = TensorSpec("x", (64, 64), torch.float32)
    remembers = isinstance(made, Remembering)
    delta, omega = contraction_of(made.inner if remembers else made, spec), variance_of(made, spec)
    if remembers and delta is not None and delta < 0.5:
        return f"what is not said waits: {delta:.2g} of a matrix of 64 x 64 is sure to be said in a step; {untuned}"
    if omega is not None and omega > 0.5:
        return f"noise: ω = {omega:.2g} times the square of a matrix of 64 x 64; {untuned}"
    if not remembers and delta is not None and delta < 1:
        return f"what is not said is lost: no memory; {untuned}"
    return untuned


def compressor_of(sentence: str) -> tuple[Any, Any]:
    """Return the last phase's sentence, and its compressor where that exchanges with all workers."""
    from laconic.strategy import Phases, Strategy

    strategy = Strategy.parse(sentence)
    while isinstance(strategy, Phases):
        strategy = strategy.last
    made = strategy.compressor  # type: ignore[attr-defined]
    return strategy, None if made.meets == "edge" else made


def show(table: list[dict[str, Any]], examples: list[str], protocol: bool) -> None:
    if not protocol:
        seeds = ", ".join(f"{len(QUICK_SEEDS[e])} seeds of {e}" for e in examples)
        print(f"QUICK: rates by hand, {seeds}. Not by the protocol.")
    print(f"{WORKERS} virtual workers; loss over bsp's at equal samples [95 %]; fewer: bsp's bytes over its own")
    heads = [f"{e} loss × fewer" for e in examples]
    print(f"{'technique':20}" + "".join(f"{h:>34}" for h in heads) + "   enc ms  dec ms  bits  kept  peak  within 2 %")
    for of in table:
        cells = "".join(
            f"{of[f'{e}_ratio']:>9} [{of[f'{e}_low']}–{of[f'{e}_high']}]".ljust(26) + f"{of[f'{e}_fewer']:>8}"
            for e in examples
        )
        costs = f"{of['encode']:>9}{of['decode']:>8}{of['handed']:>7}{of['kept']:>6}{of['peak']:>6}"
        print(f"{of['technique']:20}{cells}{costs}  {of['within']}{': ' if of['why'] else ''}{of['why']}")


if __name__ == "__main__":
    main()
