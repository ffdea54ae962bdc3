"""Division of a batch among workers of different speeds such that all of them compute equally long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laconic.errors import ContractError

LinearTime = tuple[float, float]
"""The seconds per sample p and per batch q of the model t(b) = p·b + q, in which b is the number of samples."""


def fit(times: Sequence[Sequence[float]]) -> LinearTime:
    """Fit a line to pairs (batch, seconds) by least squares; a line through zero if the fit would be degenerate."""
    batches, seconds = np.array(times, dtype=float).T
    spread = batches - batches.mean()
    if (spread**2).sum() > 0:
        slope = float((spread * seconds).sum() / (spread**2).sum())
        rest = float(seconds.mean() - slope * batches.mean())
        if slope > 0 and rest >= 0:
            return slope, rest
    return float(seconds.mean() / batches.mean()), 0.0


def divide(total: int, lines: Sequence[LinearTime]) -> list[int]:
    """Return whole batches of at least one sample that sum to the total, with times as equal as possible."""
    if total < len(lines):
        raise ContractError(f"a batch of {total} cannot be divided among {len(lines)} workers: give more samples")
    shares = np.ones(len(lines))
    free = np.ones(len(lines), dtype=bool)
    p, q = (np.array(column, dtype=float) for column in zip(*lines, strict=True))
    while free.any():  # a worker that would get less than one sample gets one, and the others share the rest
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
