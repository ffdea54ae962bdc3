"""Which entries a server sends back where every client has sent its largest: some of everybody's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fair_places(places: Sequence[Tensor], values: Sequence[Tensor], total: Tensor, k: int) -> Tensor:
    """Return k places, in ascending order: as many of everybody's largest as fit, and then the largest of the sum.

    - `places`, `values`: what each client has sent, at least k entries each, its places in ascending order.
    - `total`: the weighted sum of all, with every place.

    With κ the largest number for which everybody's κ largest have at most k places together, these are chosen; the rest
    are those places of everybody's κ + 1 largest at which the sum is largest. So each of N clients has at least ⌊k/N⌋
    of its own among them, and the places of a smaller k are among those of a larger one.
    """
    ranked = [at[value.abs().argsort(descending=True, stable=True)] for at, value in zip(places, values, strict=True)]

    def union(count: int) -> Tensor:
        found: Tensor = torch.cat([mine[:count] for mine in ranked]).unique()
        return found

    few, many = 0, k + 1  # everybody's `few` largest fit, and `many` do not
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if len(union(middle)) <= k else (few, middle)
    chosen = union(few)
    further = union(few + 1)
    further = further[~torch.isin(further, chosen)]
    filled = further[total[further].abs().argsort(descending=True, stable=True)[: k - len(chosen)]]
    return torch.cat([chosen, filled]).sort().values
