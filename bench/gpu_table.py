"""Measure how far estimates from the table of GPUs are from measured steps, and what the reachable shares would be by a
fit.

python bench/gpu_table.py --data DIR          # errors by source
python bench/gpu_table.py --data DIR --fit    # fits the shares; then without each source in turn (half an hour)
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from laconic.profile.gpus.measured import Case, cited, held_out, own, published, unfitted
from laconic.profile.gpus.roofline import SHARES, Shares

START = Shares(0.85, 0.8, 0.6, 0.7, 0.6, 0.7, 0.7, 0.7, 0.2e12, 0.3e12, 0.8e12, 1.4e-4)
"""Where a fit begins, and what decides where measurements do not: few GPUs tell the peak's share from the power's."""
PULL, MOST = 0.004, [1.0] * 6 + [0.95] * 2


def loss(cases: Iterable[Case], shares: Shares) -> float:
    """Return the mean distance of logarithms; each source counts alike in each precision and kind of model."""
    groups = defaultdict(list)
    for case in cases:
        kind = any(tensor.kind == "convolution" for tensor in case.tensors)
        distance = abs(np.log(case.predicted_seconds(shares) / case.seconds))
        groups[case.source, case.precision, kind].append(distance)
    return float(np.mean([np.mean(group) for group in groups.values()]))


def fit(cases: Sequence[Case]) -> Shares:
    from scipy.optimize import minimize

    start = np.log([getattr(START, f.name) for f in fields(START)])

    def objective(x: np.ndarray) -> float:
        above = np.maximum(0, x[: len(MOST)] - np.log(MOST)).sum()
        return loss(cases, Shares(*np.exp(x))) + 10 * above + PULL * float(((x - start) ** 2).sum())

    found = start
    for _ in range(2):  # the simplex is made anew
        found = minimize(objective, found, method="Nelder-Mead", options={"maxfev": 3000, "adaptive": True}).x
    return Shares(*map(float, np.exp(found)))


def line(name: str, cases: Sequence[Case], shares: Shares = SHARES) -> str:
    errors = np.array([case.error(shares) for case in cases])
    size = np.abs(errors)
    return (
        f"| {name} | {len(cases)} | {size.mean():.0%} | {size.max():.0%} | {errors.min():+.0%} to {errors.max():+.0%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--data", type=Path, default=os.environ.get("LACONIC_DATA", here / ".." / "shared" / "data"))
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args()
    cases = [*own(), *cited(), *published(Path(given.data))]
    print("| source | steps | mean error | largest | range |\n| --- | --- | --- | --- | --- |")
    for source in dict.fromkeys(case.source for case in cases):
        print(line(source, [case for case in cases if case.source == source]))
    print(line("all", cases))
    others = [*unfitted(), *held_out(Path(given.data))]
    for source in dict.fromkeys(case.source for case in others):
        print(line(f"{source}: not fitted", [case for case in others if case.source == source]))
    for name in dict.fromkeys(case.gpu.name for case in unfitted()):
        print(line(f"  of which {name}", [case for case in unfitted() if case.gpu.name == name]))
    print(line("all that was not fitted", others))
    ratios = np.array([case.seconds / case.predicted_seconds() for case in cases])
    print(f"\nmeasured over predicted: a tenth below {np.quantile(ratios, 0.1):.2f}, a tenth above", end=" ")
    print(f"{np.quantile(ratios, 0.9):.2f}; loss {loss(cases, SHARES):.3f}")
    if given.fit:
        best = fit(cases)
        print(f"\nfitted to all, loss {loss(cases, best):.3f}:")
        print("\n".join(f"  {f.name} {getattr(best, f.name):.3g}" for f in fields(best)))
        print("\nfitted without the source that is predicted:")
        left: list[float] = []
        for source in dict.fromkeys(case.source for case in cases):
            shares = fit([case for case in cases if case.source != source])
            these = [case for case in cases if case.source == source]
            left += [abs(case.error(shares)) for case in these]
            print(line(source, these, shares), flush=True)
        print(f"| all | {len(left)} | {np.mean(left):.0%} | {np.max(left):.0%} | |")


if __name__ == "__main__":
    main()
