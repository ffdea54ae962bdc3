"""The hot loops of compression on this machine's CPU, against `copy_` and plain torch, side by side.

    python bench/kernels_cpu.py                  # 25 M elements, all threads that torch uses
    python bench/kernels_cpu.py --elements 1000000

Each row alternates with `copy_` of as many elements, so that other work of the machine affects both; medians of the
ratios, with quartiles. A pass is one reading of the input with at most one writing of as many elements.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from laconic import kernels
from laconic.compression.codes import bits
from laconic.kernels import reference


def timed(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def plain_quantize(x: torch.Tensor, bucket: int, levels: int) -> torch.Tensor:
    """Quantise as libraries do, with every operation over the whole tensor."""
    rows = x.view(-1, bucket)
    scales = rows.abs().amax(dim=1, keepdim=True)
    a = rows.abs() / scales * levels
    level = a.floor() + (torch.rand_like(a) < a - a.floor())
    codes = (level + (rows < 0) * (levels + 1)).to(torch.uint8).view(-1)
    return codes[::2] | (codes[1::2] << 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    n = args.elements // 512 * 512
    x, error, into = torch.randn(n), torch.zeros(n), torch.empty(n)
    threshold = float(x[: n // 100].abs().kthvalue(int(0.99 * (n // 100))).values)

    def qsgd() -> torch.Tensor:
        scales = kernels.bucket_scales(x, 512, "max")
        return kernels.quantize_in_nibbles(x, scales, 512, 7, 99)

    rows: dict[str, tuple[int, Callable[[], object], Callable[[], object] | None]] = {
        "error feedback + sign + pack": (
            2,
            lambda: kernels.feed_signs(x, error),
            lambda: reference.feed_signs(x, error),
        ),
        "sign + pack": (1, lambda: kernels.pack_signs(x), lambda: reference.pack_signs(x)),
        "QSGD 4 bit, bucket 512": (2, qsgd, lambda: plain_quantize(x, 512, 7)),
        "threshold selection, 1 %": (2, lambda: kernels.select(x, threshold), lambda: x.abs().topk(n // 100)),
        "unpack and add signs": (1, lambda: kernels.add_signs(into, packed, scale), None),
        "unpack 4 bit": (1, lambda: bits.unpack(nibbles, 4, n), None),
    }
    packed, scale = kernels.feed_signs(x, error)
    nibbles = qsgd()
    print(f"{n:,} elements, {torch.get_num_threads()} threads, medians of {args.rounds} rounds [quartiles]")
    print(f"{'':32}{'passes':>7}{'ms':>8}{'x copy_ a pass':>26}{'x faster than torch':>26}")
    for name, (passes, act, plain) in rows.items():
        act()
        mine, copies, theirs = [], [], []
        for _ in range(args.rounds):
            copies.append(timed(lambda: into.copy_(x)))
            mine.append(timed(act))
            if plain is not None and len(theirs) < 5:
                theirs.append(timed(plain))
        per_pass = [a / b / passes for a, b in zip(mine, copies, strict=True)]
        faster = [b / a for a, b in zip(mine, theirs, strict=False)]
        print(f"{name:32}{passes:7}{1e3 * statistics.median(mine):8.1f}{shown(per_pass):>26}{shown(faster):>26}")


def shown(values: list[float]) -> str:
    if len(values) < 2:
        return "–"
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} [{low:.2f}–{high:.2f}]"


if __name__ == "__main__":
    main()
