"""Time to tuned DDP's loss: our sentences against the best of existing tools, from slow networks to fast ones.

    python bench/curves.py --output curves.jsonl …          # once, anywhere: what each method learns (hours)
    python bench/end_to_end.py --curves curves.jsonl --times times.json   # here: what a step takes (20 min)

Four workers train the character transformer (0.8 M parameters, 256 characters a worker and step) as `curves.py` does.
Methods that wait for each other learn the same over any links, so that time to a loss is steps to it, by the curves,
times seconds a step, measured here: rows side by side in ten blocks of sixteen steps, on a shaped network of
namespaces. The target is DDP's own loss after 256 steps at its best learning rate, seed by seed; steps are read off
between two evaluations by a straight line. A rival that does the mathematics of one of our sentences exactly is given
that sentence's curve. The bound is DDP's step over the step without communication.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from curves import BATCH, EVERY, WORKERS, Training, read  # noqa: E402
from laconic.experiments.compare import compare  # noqa: E402
from laconic.experiments.settings import Settings  # noqa: E402
from laconic.experiments.statistics import Spread, bootstrap_ratio  # noqa: E402
from laconic.report.progress import progress  # noqa: E402

CHARS = HERE.parent / "examples" / "chars.py"
TARGET_STEPS, REPORTED = 256, (2, 3, 4, 5, 6)
RATES = ("48Mbit", "270Mbit", "1Gbit", "4Gbit")


@dataclass(frozen=True)
class Row:
    """A row: the method whose step is timed, and the method whose learning curve it follows."""

    strategy: str
    learns: str
    ours: bool = False
    slow: bool = True  # whether it is worth its minutes on the slowest links


_POWER = "torch:powersgd(rank=4, start=2, bucket_cap_mb=1000)"
ROWS = (
    Row("torch:ddp(bucket_cap_mb=25)", "bsp"),
    Row("torch:ddp(bucket_cap_mb=1)", "bsp", slow=False),
    Row("torch:ddp16", "bsp"),  # its rounding is forgiven
    Row(_POWER, _POWER),
    Row("accelerate:local_sgd(period=16)", "local(16)"),
    Row("local(4) / scaled_sign+ef", "local(4) / scaled_sign+ef", ours=True),
    Row("bsp / cast_fp16", "bsp", ours=True, slow=False),
    Row("bsp", "bsp", ours=True, slow=False),
)


def best_rates(curves: Mapping[Training, Sequence[tuple[int, float]]]) -> dict[str, float]:
    """Return each method's learning rate with the least loss after as many steps as DDP makes, by the choosing seed."""
    found: dict[str, dict[float, float]] = {}
    for training, curve in curves.items():
        if training.seed == 0:
            found.setdefault(training.strategy, {})[training.rate] = dict(curve)[TARGET_STEPS]
    return {name: min(losses, key=lambda rate: losses[rate]) for name, losses in found.items()}


def steps_to(curve: Sequence[tuple[int, float]], loss: float) -> float:
    """Return the steps to this loss, by a straight line between the evaluations around it; infinity if it was never
    reached."""
    before = (0, math.inf)
    for step, value in curve:
        if value <= loss:
            share = 1.0 if math.isinf(before[1]) else (before[1] - loss) / (before[1] - value)
            return before[0] + share * (step - before[0])
        before = (step, value)
    return math.inf


def learned(path: Path) -> dict[str, dict[int, float]]:
    """Return the steps to the target, by method and reporting seed."""
    curves = read(path)
    rates = best_rates(curves)
    found: dict[str, dict[int, float]] = {}
    for training, curve in curves.items():
        if training.rate == rates.get(training.strategy) and training.seed in REPORTED:
            base = next(
                c for t, c in curves.items() if (t.strategy, t.rate, t.seed) == ("bsp", rates["bsp"], training.seed)
            )
            found.setdefault(training.strategy, {})[training.seed] = steps_to(curve, dict(base)[TARGET_STEPS])
    return found


@dataclass(frozen=True)
class Timed:
    """A row's times on one network."""

    row: Row
    step_seconds: float
    low: float
    high: float
    megabytes: float

    @property
    def figures(self) -> tuple[float, float, float, float]:
        return self.step_seconds, self.low, self.high, self.megabytes


def timed(rate: str, rows: Sequence[Row], blocks: int, folder: str | None) -> tuple[list[Timed], float]:
    """Return each row's step time, and the baseline's without communication."""
    steps = EVERY * (blocks + 1)
    script = (str(CHARS), "--batch", str(BATCH), "--steps", str(steps + 1), "--every", "1000000", "--validate", "128")
    settings = Settings(
        script, tuple(row.strategy for row in rows), WORKERS, rate=rate, steps=steps, blocks=blocks, block_steps=EVERY
    )
    with progress() as watch:
        comparison = compare(settings, folder and f"{folder}/{rate}", watch)
    found = []
    for row, line in zip(rows, comparison.lines, strict=True):
        if line.step_seconds is None or line.error is not None:
            print(f"{rate}: `{row.strategy}` failed: {line.error}", file=sys.stderr)
            continue
        value, sent = line.step_seconds.value, line.sent_bytes
        found.append(Timed(row, value.middle, value.low, value.high, sent.value.middle / 1e6 if sent else math.nan))
    computing = comparison.lines[0].computing_seconds
    return found, computing.middle if computing else math.nan


def table(rate: str, found: Sequence[Timed], computing: float, steps: Mapping[str, Mapping[int, float]]) -> None:
    ddp = min(t.step_seconds for t in found if t.row.strategy.startswith("torch:ddp("))
    seconds = {
        t.row.strategy: {seed: n * t.step_seconds for seed, n in steps.get(t.row.learns, {}).items()} for t in found
    }
    whole = {name: times for name, times in seconds.items() if times and all(map(math.isfinite, times.values()))}
    ours = {t.row.strategy for t in found if t.row.ours}
    rival = min((n for n in whole if n not in ours), key=lambda n: sum(whole[n].values()) / len(whole[n]))
    print(
        f"\n{rate}: r = {ddp / computing - 1:.2f}; DDP {1e3 * ddp:.0f} ms a step, alone {1e3 * computing:.0f} "
        f"ms; best rival `{rival}`"
    )
    print(f"{'':52}{'ms/step':>9}  {'quartiles':15}{'MB':>7}{'steps':>7}{'seconds':>9}  rival's time over it   bound")
    for t in found:
        name, times = t.row.strategy, seconds[t.row.strategy]
        reached = [n for n in steps.get(t.row.learns, {}).values() if math.isfinite(n)]
        count = (
            f"{sum(reached) / len(reached):.0f}"
            if len(reached) == len(times) and times
            else f"{len(reached)}/{len(times)}"
        )
        mean = f"{sum(times.values()) / len(times):.1f}" if name in whole else "–"
        gain = shown(bootstrap_ratio(whole[rival], whole[name])) if name in whole else "–"
        bound = (ddp / t.step_seconds) / (ddp / computing)
        print(
            f"{name[:51]:52}{1e3 * t.step_seconds:>9.0f}  {f'{1e3 * t.low:.0f}–{1e3 * t.high:.0f}':15}"
            f"{t.megabytes:>7.2f}{count:>7}{mean:>9}  {gain:22}{bound:>6.0%}"
        )


def shown(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.middle:.2f} [{spread.low:.2f}–{spread.high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, required=True, help="what `curves.py` wrote")
    parser.add_argument("--rates", default=",".join(RATES), help=f"of the links (default {','.join(RATES)})")
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument(
        "--times", type=Path, required=True, help="where step times are kept; what is there is not timed"
    )
    parser.add_argument("--folder", help="keep the comparisons there")
    args = parser.parse_args()
    times = json.loads(args.times.read_text()) if args.times.exists() else {}
    for rate in args.rates.split(","):
        if rate not in times:
            chosen = [row for row in ROWS if row.slow or rate != RATES[0]]
            rows, computing = timed(rate, chosen, args.blocks, args.folder)
            times[rate] = {"computing": computing, "rows": {t.row.strategy: t.figures for t in rows}}
            args.times.write_text(json.dumps(times))
    steps = learned(args.curves)
    missing = sorted({row.learns for row in ROWS} - set(steps))
    if missing:
        print(f"no curves with the reporting seeds for {', '.join(missing)}: they are timed only", file=sys.stderr)
    for rate in args.rates.split(","):
        found = [Timed(row, *times[rate]["rows"][row.strategy]) for row in ROWS if row.strategy in times[rate]["rows"]]
        table(rate, found, times[rate]["computing"], steps)


if __name__ == "__main__":
    main()
