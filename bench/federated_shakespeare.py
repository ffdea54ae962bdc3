"""Rounds and bytes to a target accuracy on Shakespeare, by local epochs, batch and share of clients: McMahan's tables.

    LACONIC_DATA=... python bench/federated_shakespeare.py --minutes 40     # goes on where it was
    python bench/federated_shakespeare.py --show

A hundred speakers hold their own lines (`natural`), or as many lines of anybody (`iid`), and an LSTM of 32 units, far
smaller than the paper's, learns to write the next character. Every setting has its own learning rate: the best of a
grid of factor 2, on a seed that is not reported, which begins at 8 and goes on while it gets
better. A rate that has not reached the target by the rounds of the best so far is given up. As in the paper, the curve
of the best accuracy so far is interpolated between the rounds at which the model is judged.

A run is the unit that resumes: each appends one line to `docs/measured/federated_shakespeare.jsonl` (or `--out`), and a
run whose line is there is not made again.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from bench.packed import Table, lines  # noqa: E402

from laconic.federated.local import Trainer  # noqa: E402
from laconic.federated.outcome import Step  # noqa: E402
from laconic.federated.partition import iid, natural  # noqa: E402
from laconic.federated.population import Population  # noqa: E402
from laconic.federated.shakespeare import shakespeare  # noqa: E402
from laconic.federated.simulate import simulate  # noqa: E402

OUT = ROOT / "docs" / "measured" / "federated_shakespeare.jsonl"
NEAR, FAR = 0.32, 0.36
"""Target accuracies: what FedSGD reaches in a minute, and one to which ten clients need more than a few rounds."""
SPEAKERS = 100
TUNING_SEED = 100
SEEDS = (0, 1, 2)
GUESS = 8.0  # the rate with which the search begins
LIMIT = 4  # learning rates


@dataclass(frozen=True)
class Setting:
    """What is measured.

    - `partition`: `natural` or `iid`.
    - `clients`: of a round, of a hundred.
    - `epochs`, `batch`: what each of them does; a batch of 0 is all that it holds.
    - `every`: after how many rounds the model is judged.
    - `most`: the rounds after which a run is given up.
    - `target`: the accuracy to which rounds are counted.
    """

    partition: str
    clients: int
    epochs: int
    batch: int
    every: int
    most: int
    target: float

    @property
    def sentence(self) -> str:
        return f"fedavg(clients={self.clients}, epochs={self.epochs}, batch={self.batch})"

    @property
    def steps(self) -> float:
        """The mean number of local steps of a client in a round: the paper's u."""
        held = len(shakespeare().sequences) / SPEAKERS
        return self.epochs * (held / self.batch if self.batch else 1.0)


def settings() -> list[Setting]:
    """Return what is measured, the most telling first."""
    work = [(10, 1, 0, 4, 400), (10, 5, 0, 1, 100), (10, 1, 10, 1, 100), (10, 5, 10, 1, 60)]
    share = [(1, 5, 10, 2, 400), (10, 5, 10, 1, 60), (20, 5, 10, 1, 60)]
    both = [(*numbers, NEAR) for numbers in work] + [(*numbers, FAR) for numbers in share]
    found = [Setting(partition, *numbers) for numbers in both for partition in ("natural", "iid")]
    more = [(50, 5, 10, 1, 60, FAR), (1, 1, 0, 8, 400, NEAR), (10, 20, 10, 1, 40, NEAR)]
    return found + [Setting("natural", *numbers) for numbers in more]


class Reached(Exception):
    """The target is reached."""


def rounds_to(setting: Setting, rate: float, seed: int, most: float) -> tuple[float | None, list[tuple[int, float]]]:
    """Return the rounds after which a run has the target accuracy, and its accuracies by round."""
    task = shakespeare()
    shards = natural(task.groups) if setting.partition == "natural" else iid(len(task.sequences), SPEAKERS, seed)
    curve = [(0, Trainer(task, seed).evaluate(Trainer(task, seed).start)["accuracy"])]
    done = 0

    def judge(step: Step) -> None:
        nonlocal done
        done += 1
        if step.scores:
            curve.append((done, step.scores["accuracy"]))
            if step.scores["accuracy"] >= setting.target:
                raise Reached

    try:
        simulate(
            task,
            Population(shards),
            setting.sentence,
            math.ceil(most / setting.every) * setting.every,
            rate=rate,
            seed=seed,
            evaluate_every=setting.every,
            progress=judge,
        )
    except Reached:
        before = max(accuracy for _, accuracy in curve[:-1])
        (since, _), (until, after) = curve[-2], curve[-1]
        return since + (until - since) * (setting.target - before) / (after - before), curve
    return None, curve


class Rows:
    """The lines of a file, to which each run adds one."""

    def __init__(self, path: Path) -> None:
        self._table = Table(lines(path), path)

    def find(self, setting: Setting, seed: int) -> list[dict[str, Any]]:
        """Return the rows of a setting with a seed, in the order in which they were made."""
        wanted = {**asdict(setting), "seed": seed}
        return [row for row in self._table.rows if all(row[name] == value for name, value in wanted.items())]

    def measure(self, setting: Setting, rate: float, seed: int, most: float) -> float:
        """Return the rounds to the target, from a row or from a run."""
        for row in self.find(setting, seed):
            if row["rate"] == rate:
                return row["rounds"] or math.inf
        began = time.process_time()
        rounds, curve = rounds_to(setting, rate, seed, most)
        row = {
            **asdict(setting), "rate": rate, "seed": seed,
            "rounds": None if rounds is None else round(rounds, 2),
            "curve": [(at, round(accuracy, 4)) for at, accuracy in curve],
            "seconds": round(time.process_time() - began, 1),
        }  # fmt: skip
        self._table.append(row)
        best = max(accuracy for _, accuracy in curve)
        took = "not reached" if rounds is None else f"{rounds:.1f} rounds"
        told = f"{took}, best accuracy {best:.3f}, {row['seconds']} s"
        print(f"{setting.partition:8}{setting.sentence} rate {rate:g} seed {seed}: {told}", flush=True)
        return rounds or math.inf

    def best_rate(self, setting: Setting) -> float:
        """Return the rate of a setting that reaches the target first on the seed that is not reported."""
        first = GUESS
        found = {first: self.measure(setting, first, TUNING_SEED, setting.most)}
        for factor in (0.5, 2.0):
            rate = first * factor
            while len(found) < LIMIT:
                best = min(found.values())
                found[rate] = self.measure(setting, rate, TUNING_SEED, min(best, setting.most))
                if found[rate] >= best:
                    break
                rate *= factor
            if min(found, key=found.__getitem__) != first:
                break
        return min(found, key=found.__getitem__)


def show(rows: Rows) -> None:
    """Print the table of what is there."""
    number = sum(p.numel() for p in shakespeare().build(0).parameters())
    print("| target | split | clients of 100 | E | B | u | rate | rounds, by seed | mean | MB, up and down |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for setting in sorted(settings(), key=lambda s: (s.target, s.partition, s.batch, s.epochs, s.clients)):
        runs = [row for seed in SEEDS for row in rows.find(setting, seed)]
        if not runs:
            continue
        each = [row["rounds"] for row in runs]
        known = [rounds for rounds in each if rounds is not None]
        texts = [f"{rounds:.1f}" if rounds is not None else f"above {setting.most}" for rounds in each]
        mean = sum(known) / len(known) if len(known) == len(each) else math.nan
        megabytes = mean * 2 * setting.clients * 4 * number / 1e6
        cells = (
            setting.target, setting.partition, setting.clients, setting.epochs, setting.batch or "all",
            f"{setting.steps:.1f}", f"{runs[0]['rate']:g}", ", ".join(texts), f"{mean:.1f}", f"{megabytes:.1f}",
        )  # fmt: skip
        print("| " + " | ".join(map(str, cells)) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="the file of rows")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after so long")
    parser.add_argument("--only", choices=["natural", "iid"], help="this split alone; two processes need two files")
    parser.add_argument("--show", action="store_true", help="print the table, and train nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows(arguments.out)
    until = time.monotonic() + 60 * arguments.minutes
    if not arguments.show:
        wanted = [setting for setting in settings() if arguments.only in (None, setting.partition)]
        for setting, seed in ((setting, seed) for setting in wanted for seed in SEEDS):
            if time.monotonic() < until:
                rows.measure(setting, rows.best_rate(setting), seed, setting.most)
    show(rows)


if __name__ == "__main__":
    main()
