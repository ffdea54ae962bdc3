"""Measure how well short trainings predict how long ones end: the rank correlation that `laconic plan --verify` rests
on.

    python bench/verify.py --out verify.csv          # trains what the file does not hold yet, then prints the table
    python bench/verify.py --out verify.csv --tasks digits --seeds 0,1,2

Fifteen strategies train both examples among four virtual workers, at one learning rate for all, as a script has it;
rank 0's validation loss is taken after 5, 10, 25, 50 and 100 % of the steps. Spearman's correlation is between the
order of the strategies by an early loss and by the last one (means over seeds), with a 95 % bootstrap interval over
strategies. `kept` shows whether the one that ends best is in the better half of the early order, and `loss` how much
more the early order's first ends with than the best.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "examples")]

import accuracy  # noqa: E402

WORKERS, DRAWS = 4, 2000
STEPS = {"digits": 200, "chars": 160}
RATE = {"digits": 0.05, "chars": 4e-3}
SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)
SENTENCES = (
    "bsp",
    "bsp / cast_int8",
    "bsp / qsgd(levels=7)",
    "bsp / qsgd(levels=1)",
    "bsp / terngrad",
    "bsp / topk(0.1)+ef",
    "bsp / topk(0.01)+ef",
    "bsp / topk(0.001)+ef",
    "bsp / randk(0.01, scaled=false)+ef",
    "bsp / power_sgd(rank=2)+ef",
    "bsp / scaled_sign+ef",
    "local(4)",
    "local(16)",
    "diloco(8)",
    "grad_accumulation(4)",
)


def train(sentence: str, task: str, seed: int) -> list[float]:
    """Train, and return rank 0's validation loss after each share of the steps."""
    import laconic

    marks = {max(1, round(share * STEPS[task])) for share in SHARES}
    losses: list[float] = []

    def body() -> None:
        model, loss_of, judge = accuracy.TASKS[task](seed, WORKERS)
        optimizer = accuracy.optimizer_for(accuracy.OPTIMIZER[task], model, RATE[task], accuracy.MOMENTUM)
        wrapped, optimizer = laconic.distribute(model, optimizer, sentence)
        for step in range(1, STEPS[task] + 1):
            loss_of(wrapped, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            if laconic.rank() == 0 and step in marks:
                losses.append(judge(model))

    laconic.simulate(body, WORKERS, seed=seed)
    return losses


def spearman(early: np.ndarray, last: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(early, last).statistic)


def report(rows: list[dict[str, str]], task: str) -> None:
    seeds = sorted({row["seed"] for row in rows if row["task"] == task})
    found = {(r["sentence"], r["seed"]): [float(x) for x in r["losses"].split()] for r in rows if r["task"] == task}
    whole = [s for s in SENTENCES if all((s, seed) in found for seed in seeds)]
    if len(whole) < 3:
        return
    table = np.mean([[found[s, seed] for s in whole] for seed in seeds], axis=0)  # strategies x shares
    table = np.where(np.isfinite(table), table, 1e9)
    draw = np.random.default_rng(0)
    print(f"\n{task}: {len(whole)} strategies, {STEPS[task]} steps, {len(seeds)} seeds, {WORKERS} workers")
    print("steps    correlation [95 %]      kept   loss")
    last = table[:, -1]
    for column, share in enumerate(SHARES[:-1]):
        early = table[:, column]
        drawn = [draw.integers(0, len(whole), len(whole)) for _ in range(DRAWS)]
        values = [spearman(early[d], last[d]) for d in drawn if len(set(d)) > 2]
        low, high = np.nanquantile(values, (0.025, 0.975))
        half = np.argsort(early)[: -(-len(whole) // 2)]
        more = last[np.argmin(early)] / last.min() - 1
        kept = "yes" if np.argmin(last) in half else "no"
        print(f"{share:>4.0%}     {spearman(early, last):>5.2f} [{low:.2f}–{high:.2f}]      {kept:>4}  {more:+.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("verify.csv"), help="trainings are kept here")
    parser.add_argument("--tasks", default="digits,chars", help="some of digits, chars, separated by commas")
    parser.add_argument("--seeds", default="0,1", help="separated by commas")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    names = ("sentence", "task", "seed", "losses")
    if not args.out.exists():
        args.out.write_text(",".join(names) + "\n")
    with args.out.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    done = {(row["sentence"], row["task"], row["seed"]) for row in rows}
    tasks = args.tasks.split(",")
    wanted = [(s, t, k) for k in args.seeds.split(",") for t in tasks for s in SENTENCES if (s, t, k) not in done]
    begin = time.monotonic()
    for number, (sentence, task, seed) in enumerate(wanted, 1):
        losses = train(sentence, task, int(seed))
        rows.append(dict(zip(names, (sentence, task, seed, " ".join(f"{x:.6g}" for x in losses)), strict=True)))
        with args.out.open("a", newline="") as file:
            csv.DictWriter(file, names, lineterminator="\n").writerow(rows[-1])
        print(f"{number}/{len(wanted)}  {time.monotonic() - begin:.0f} s  {task}  {sentence}: {losses}", flush=True)
    for task in tasks:
        report(rows, task)


if __name__ == "__main__":
    main()
