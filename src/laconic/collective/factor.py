"""Which grid the ranks of a network are taken for: factorisations of their number, priced."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import accumulate, permutations

from laconic.collective.grids import blueconnect
from laconic.collective.price import price
from laconic.collective.program import Program
from laconic.errors import ProgramError
from laconic.network.routes import Links


def factorisations(size: int, units: Sequence[int] = (), most: int = 3) -> Iterator[tuple[int, ...]]:
    """Yield the sides of all grids of so many ranks, innermost first, with at most so many dimensions.

    - `units`: sizes of the network's units of neighbouring ranks (a host's, a rack's); a grid that it allows has a
      dimension that ends at each of them, so that no ring is partly inside and partly outside a unit.
    - `most`: the largest number of dimensions.
    """
    if size == 1:
        yield (1,)
        return

    def divided(left: int, dimensions: int) -> Iterator[tuple[int, ...]]:
        if left == 1:
            yield ()
        elif dimensions:
            for side in range(2, left + 1):
                if left % side == 0:
                    yield from ((side, *rest) for rest in divided(left // side, dimensions - 1))

    for sides in divided(size, most):
        if {1, size, *accumulate(sides, operator.mul)} >= set(units):
            yield sides


def cheapest_grid(nbytes: float, links: Links, units: Sequence[int] = (), most: int = 3) -> Program:
    """Return BlueConnect's program with the sides, and the order of its dimensions, that take the least time here.

    - `nbytes`: of a rank's vector.
    - `links`: the network, in which the neighbours of each dimension should be joined alike.
    - `units`, `most`: which grids are tried, as in `factorisations`.
    """
    best: tuple[float, Program] | None = None
    for sides in factorisations(links.size, units, most):
        for order in permutations(range(len(sides))):
            program = blueconnect(links.size, sides=sides, order=order)
            seconds = price(program, nbytes, links).seconds
            if best is None or seconds < best[0] * (1 - 1e-12):
                best = seconds, program
    if best is None:
        raise ProgramError(f"no grid of {links.size} ranks with at most {most} dimensions has units of {list(units)}")
    return best[1]
