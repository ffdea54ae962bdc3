"""Measure the search for layouts of large transformers: layouts priced a second on one core, beside one at a time.

    python bench/layouts.py                # about a minute

Listing the layouts, their memory and choosing the best are part of the time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from laconic.parallel.hybrid.cluster import DGX_A100, Constants
from laconic.parallel.hybrid.iteration import iteration_seconds
from laconic.parallel.hybrid.runs import Run
from laconic.parallel.hybrid.search import search
from laconic.parallel.hybrid.transformer import transformer

TRIALS, SINGLY = 7, 300
CASES = (("gpt3-13b", 64), ("gpt3-175b", 512), ("gpt3-175b", 1024), ("megatron-1t", 3072), ("mt-nlg-530b", 2240))
LEAST = 2000  # layouts a second


def timed(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def main() -> None:
    constants = Constants()
    print(f"{'model':14} {'GPUs':>5} {'layouts':>8} {'a second':>9} {'times ' + str(LEAST):>10} {'one at a time':>14}")
    for name, gpus in CASES:
        model, batch = transformer(name)

        def whole(model=model, gpus=gpus, batch=batch):  # type: ignore[no-untyped-def]
            return search(model, gpus, batch, DGX_A100, constants, top=SINGLY)

        found = whole()
        rate = found.priced / statistics.median(timed(whole) for _ in range(TRIALS))
        runs = [Run(model, batch, choice.layout) for choice in found.choices]

        def singly(runs=runs):  # type: ignore[no-untyped-def]
            return [iteration_seconds(run, DGX_A100, constants) for run in runs]

        alone = len(runs) / timed(singly)
        print(f"{name:14} {gpus:5} {found.priced:8,} {rate:9,.0f} {rate / LEAST:9.1f}x {rate / alone:13.1f}x")


if __name__ == "__main__":
    main()
