"""Selection of values by a threshold or by rank, and the mean of many workers' sparse messages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from laconic.kernels.draws import BITS, integers

LEAST = torch.finfo(torch.float32).tiny
"""The smallest limit that is estimated, so that zeros never pass."""


def select(x: Tensor, threshold: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the places and values whose magnitude is at least the threshold, in order. A threshold on the device stays
    there."""
    places = torch.nonzero(x.abs() >= threshold).view(-1)
    return places, x[places]


def sizes(x: Tensor) -> Tensor:
    """Return magnitudes, with infinity for NaN."""
    return torch.where(x.isnan(), torch.inf, x.abs())


def sampled_limit(x: Tensor, error: Tensor | None, count: int, k: int, key: int) -> Tensor:
    """Return the k-th largest magnitude, above zero, of `count` values of x + error (x where there is no memory).

    They are drawn under a key, with repetition, or are all values where there are no more. The result stays on the
    device.
    """
    if count < x.numel():
        places = integers(key, 0, count, x.device) * x.numel() >> BITS
        x, error = x[places], None if error is None else error[places]
    least: Tensor = sizes(x if error is None else x + error).topk(k, sorted=False).values.min()
    return least.clamp_(min=LEAST)


def largest(x: Tensor, k: int) -> Tensor:
    """Return the places of the k largest magnitudes in ascending order; of those equal to the k-th, the first. NaN
    counts as largest."""
    if k >= x.numel():
        return torch.arange(x.numel(), device=x.device)
    size = sizes(x)
    least = size.kthvalue(x.numel() - k + 1).values if x.numel() < 4096 else size.topk(k, sorted=False).values.min()
    above = torch.nonzero(size > least).view(-1)
    at = torch.nonzero(size == least).view(-1)[: k - above.numel()]
    return torch.cat([above, at]).sort().values


def mean_of_sparse(places: Sequence[Tensor], values: Sequence[Tensor], n: int, left_out: float) -> Tensor:
    """Return the mean of workers' values at some of n places, which ascend for each worker, added up in the order of
    workers.

    Where no worker sent a value the result is `left_out`, plus or minus zero.
    """
    device = values[0].device
    total = torch.full((n,), left_out, device=device)
    for where, contribution in zip(places, values, strict=True):
        if device.type == "cpu":
            total.index_add_(0, where, contribution)
        else:
            total[where] += contribution  # a GPU's index_add_ flushes subnormal numbers to zero
    return total.div_(
        torch.tensor(float(len(values)), device=device)
    )  # a tensor, since a GPU would multiply by the inverse of a Python number
