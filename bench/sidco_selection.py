"""How much faster SIDCo's fitted threshold and compaction select than an exact selection, on one CPU thread.

    python bench/sidco_selection.py

The smallest of seven times each, by turns, on ten million values drawn from a Laplace distribution, a thousandth of
which is to be sent; beside `torch.topk` and beside `topk`'s own exact selection.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from laconic.compression.thresholds import SIDCo
from laconic.compression.topk import largest

NUMEL, RATIO, TURNS = 10_000_000, 0.001, 7


def main() -> None:
    torch.set_num_threads(1)
    u = torch.rand(NUMEL, generator=torch.Generator().manual_seed(0)).double() - 0.5
    x, k = (-u.sign() * torch.log1p(-2 * u.abs())).float(), int(RATIO * NUMEL)
    ways: dict[str, Callable[[], object]] = {
        "torch.topk": lambda: x.abs().topk(k, sorted=False),
        "topk": lambda: largest(x, k),
        **{f"sidco, {n} stages": lambda n=n: SIDCo(RATIO).choose(x, n) for n in (1, 2, 3)},
    }
    times = dict.fromkeys(ways, float("inf"))
    for _ in range(TURNS):
        for name, select in ways.items():
            start = time.perf_counter()
            select()
            times[name] = min(times[name], time.perf_counter() - start)
    for name, seconds in times.items():
        exact = times["torch.topk"] / seconds, times["topk"] / seconds
        print(f"{name:16} {1e3 * seconds:7.1f} ms   {exact[0]:.2f} x torch.topk   {exact[1]:.2f} x topk")


if __name__ == "__main__":
    main()
