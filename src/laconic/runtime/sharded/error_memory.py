"""Error memories of a reduce-scatter in several hops, as parts of the flat gradients: so another number of ranks takes
them over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor


def spread(error: Tensor, sizes: Sequence[int], hop: int, rank: int) -> Tensor:
    """Return as flat gradients what an owner's memory of one hop stands for.

    After the first hops an owner holds means over as many members, of the values of fewer owners: what it left out
    there counts as often, and lies at those owners' places.

    - `error`: the memory, with a row for each member of the hop's tier.
    - `sizes`: the number of members of each tier, inner to outer.
    - `hop`, `rank`: the tier, and the owner.
    """
    places = tuple(reversed(sizes))
    flat = error.new_zeros(*places, error.numel() // math.prod(sizes[hop:]))
    rows = error.view(sizes[hop], *places[: len(sizes) - hop - 1], -1)
    flat[_inside(sizes, hop, rank)] += math.prod(sizes[:hop]) * rows.movedim(0, -2)
    return flat.view(-1)


def gathered(flat: Tensor, sizes: Sequence[int], hop: int, rank: int) -> Tensor:
    """Return the memory of one hop that stands for an owner's places of flat gradients: what `spread` undoes."""
    rows = flat.view(*reversed(sizes), -1)[_inside(sizes, hop, rank)].movedim(-2, 0)
    return (rows / math.prod(sizes[:hop])).reshape(sizes[hop], -1)


def _inside(sizes: Sequence[int], hop: int, rank: int) -> tuple[Any, ...]:
    """Return the index of the owners that have a rank's places in the tiers inside of a hop."""
    places = []
    for size in sizes[:hop]:
        places.append(rank % size)
        rank //= size
    return (..., *reversed(places), slice(None))
