"""The program that takes the least time: all generators of a relation are priced on the network.

A choice for one size is `choose`; a `Selection` is the choice for all sizes as data, such as MPI libraries have in
their tables of sizes and algorithms, but made for the network at hand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import sqrt

import numpy as np

from laconic.collective.generators import generators
from laconic.collective.price import price
from laconic.collective.program import Program
from laconic.errors import LaconicError, ProgramError
from laconic.network.routes import Links, Vector

TRIED_BLOCKS = (1, 4, 16, 64)
"""Into how many blocks pipelines are cut, of the programs that are tried."""

MOST_PIECES = 4096
"""Ranks times blocks of the largest pipelines that are tried with more than 16 blocks: making longer ones takes longer
than making all other programs."""

SIZES = tuple(4.0**k for k in range(17))
"""Sizes in bytes at which a `Selection` prices all programs: 1 B to 4 GB."""


@dataclass(frozen=True)
class Recipe:
    """How to make a program: a generator's name, and the knobs that it is given."""

    name: str
    knobs: tuple[tuple[str, int], ...] = ()

    def make(self, size: int) -> Program:
        """Return the program for so many ranks."""
        (one,) = (one for one in generators() if one.name == self.name)
        return one.make(size, **dict(self.knobs))


def recipes(relation: str, size: int, inside: int = 1) -> list[tuple[Recipe, Program]]:
    """Return the programs of all generators of a relation that exist for so many ranks, with the knobs worth trying.

    - `relation`: a collective's name, such as `all_reduce`.
    - `size`: the number of ranks.
    - `inside`: how many neighbouring ranks share a host.
    """
    blocks = [count for count in TRIED_BLOCKS if count <= 16 or count * size <= MOST_PIECES]
    tried = {"inside": sorted({1, inside}), "blocks": blocks, "ways": (1, 2, 4), "ports": (1, 2, 3)}
    found: list[tuple[Recipe, Program]] = []
    for one in generators(relation):
        names = [name for name in one.knobs if name in tried]
        for values in product(*(tried[name] for name in names)):
            recipe = Recipe(one.name, tuple(zip(names, values, strict=True)))
            try:
                program = recipe.make(size)
            except ProgramError:  # not for so many ranks
                continue
            if all(program != other for _, other in found):
                found.append((recipe, program))
    if not found:
        raise LaconicError(f"no generator makes a program for {relation} among {size} ranks")
    return found


def candidates(relation: str, links: Links) -> list[Program]:
    """Return the programs of `recipes` for a network, whose hosts are its `host_size` neighbouring ranks where it has
    levels."""
    return [program for _, program in recipes(relation, links.size, getattr(links, "host_size", 1))]


def choose(relation: str, nbytes: float, links: Links, message_seconds: float = 0.0) -> Program:
    """Return the program of a relation that takes the least time with vectors of so many bytes on a network.

    - `relation`: a collective's name, such as `all_reduce`.
    - `nbytes`: of a rank's vector.
    - `links`: the network.
    - `message_seconds`: what a rank spends on each message beside the network; without it, many messages at once cost
      no more than one.
    """
    return min(candidates(relation, links), key=lambda one: price(one, nbytes, links, message_seconds).seconds)


@dataclass(frozen=True)
class Selection:
    """The cheapest program for every size on one network.

    - `programs`: from small vectors to large.
    - `limits`: from how many bytes on each but the first is taken.
    """

    programs: tuple[Program, ...]
    limits: tuple[float, ...]

    def at(self, nbytes: float) -> Program:
        """Return the program for vectors of so many bytes."""
        return self.programs[bisect_right(self.limits, nbytes)]


def select(relation: str, links: Links, message_seconds: float = 0.0, sizes: Sequence[float] = SIZES) -> Selection:
    """Return the cheapest programs of a relation on a network, by size; parameters are as in `choose`.

    All are priced at `sizes`, in bytes. Between two of them that have different winners the place of the change is
    searched to a thousandth. Since prices are convex in the size, lines between known ones bound them from above: only
    programs that are near the best of these are priced again.
    """
    programs = candidates(relation, links)

    def prices(nbytes: float, which: Iterable[int], known: Vector) -> Vector:
        found = known.copy()
        for k in which:
            found[k] = price(programs[k], nbytes, links, message_seconds).seconds
        return found

    chosen, limits = list[int](), list[float]()

    def refine(low: float, high: float, at_low: Vector, at_high: Vector) -> None:
        """Note all changes between two sizes."""
        winner = int(at_high.argmin())
        if winner == chosen[-1]:
            return
        middle = sqrt(low * high)
        if high / low < 1.001:
            chosen.append(winner)
            limits.append(middle)
            return
        line = at_low + (at_high - at_low) * (middle - low) / (high - low)
        at_middle = prices(middle, np.flatnonzero(line <= 1.1 * line.min()).tolist(), line)
        refine(low, middle, at_low, at_middle)
        refine(middle, high, at_middle, at_high)

    nothing = np.zeros(len(programs))
    known = [prices(nbytes, range(len(programs)), nothing) for nbytes in sizes]
    chosen.append(int(known[0].argmin()))
    for (low, high), ends in zip(pairwise(sizes), pairwise(known), strict=True):
        refine(low, high, *ends)
    return Selection(tuple(programs[k] for k in chosen), tuple(limits))
