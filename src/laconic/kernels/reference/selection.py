"""Which values are said: those from a threshold on, or the largest; and the mean of what many say of a few places."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from laconic.kernels.draws import BITS, integers

LEAST = torch.finfo(torch.float32).tiny
"""Below any limit that is estimated: zeros never pass."""


def select(x: Tensor, threshold: float | Tensor) -> tuple[Tensor, Tensor]:
    """Places and values whose magnitude is at least the threshold, in order. A threshold on the device stays there."""
    places = torch.nonzero(x.abs() >= threshold).view(-1)
    return places, x[places]


def sizes(x: Tensor) -> Tensor:
    """Magnitudes; what is not a number is as large as can be."""
    return torch.where(x.isnan(), torch.inf, x.abs())


def sampled_limit(x: Tensor, error: Tensor | None, count: int, k: int, key: int) -> Tensor:
    """The k-th largest magnitude, above zero, of so many values drawn under a key, with repetition, from x + error (x
    where there is no memory); of all where there are no more. It stays on the device."""
    if count < x.numel():
        places = integers(key, 0, count, x.device) * x.numel() >> BITS
        x, error = x[places], None if error is None else error[places]
    least: Tensor = sizes(x if error is None else x + error).topk(k, sorted=False).values.min()
    return least.clamp_(min=LEAST)


def largest(x: Tensor, k: int) -> Tensor:
    """The places of the k largest magnitudes in ascending order; of those at the limit, the first. What is not a number
    is as large as can be."""
    if k >= x.numel():
        return torch.arange(x.numel(), device=x.device)
    size = sizes(x)
    least = size.kthvalue(x.numel() - k + 1).values if x.numel() < 4096 else size.topk(k, sorted=False).values.min()
    above = torch.nonzero(size > least).view(-1)
    at = torch.nonzero(size == least).view(-1)[: k - above.numel()]
    return torch.cat([above, at]).sort().values


def mean_of_sparse(places: Sequence[Tensor], values: Sequence[Tensor], n: int, left_out: float) -> Tensor:
    """Of what workers say of some of n places, each of places that ascend: added up in the order of workers, then
    divided. Where nobody says anything stands `left_out`, plus or minus zero."""
    device = values[0].device
    total = torch.full((n,), left_out, device=device)
    for where, said in zip(places, values, strict=True):
        if device.type == "cpu":
            total.index_add_(0, where, said)
        else:
            total[where] += said  # a GPU's index_add_ takes numbers below the least normal one for zeros
    return total.div_(torch.tensor(float(len(values)), device=device))  # by a plain number a GPU would multiply
