"""Batches of workers of different speeds, such that all of them compute equally long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laconic.errors import ContractError

Line = tuple[float, float]
"""Seconds per sample and seconds of a batch's own: t(b) = p·b + q."""


def fit(times: Sequence[Sequence[float]]) -> Line:
    """The line through (batch, seconds), by least squares; through zero if all batches were alike or it would fall."""
    batches, seconds = np.array(times, dtype=float).T
    spread = batches - batches.mean()
    if (spread**2).sum() > 0:
        slope = float((spread * seconds).sum() / (spread**2).sum())
        rest = float(seconds.mean() - slope * batches.mean())
        if slope > 0 and rest >= 0:
            return slope, rest
    return float(seconds.mean() / batches.mean()), 0.0


def divide(total: int, lines: Sequence[Line]) -> list[int]:
    """Whole batches of at least one sample that sum to the total, with times as equal as whole numbers allow."""
    if total < len(lines):
        raise ContractError(f"a batch of {total} cannot be divided among {len(lines)} workers: give more samples")
    shares = np.ones(len(lines))
    free = np.ones(len(lines), dtype=bool)
    p, q = (np.array(column, dtype=float) for column in zip(*lines, strict=True))
    while free.any():  # whoever would get less than one sample gets one, and the others divide the rest
        rest = total - (~free).sum()
        level = (rest + (q[free] / p[free]).sum()) / (1 / p[free]).sum()
        shares[free] = (level - q[free]) / p[free]
        few = free & (shares < 1)
        if not few.any():
            break
        shares[few], free = 1.0, free & ~few
    whole = np.floor(shares).astype(int)
    for k in np.argsort(whole - shares, kind="stable")[: total - whole.sum()]:  # the largest remainders first
        whole[k] += 1
    return [int(share) for share in whole]
