"""The best rate at which all ranks can broadcast at once, and the cut that limits it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from laconic.collective.packing.capacities import Matrix
from laconic.collective.packing.flows import Question, max_flows, source_side
from laconic.errors import LaconicError


def best_rate(capacity: Matrix, ranks: int) -> tuple[Fraction, NDArray[np.bool_]]:
    """Return the best rate of every rank's broadcast, and the nodes behind the links that allow no more.

    The ranks of a set that lacks a rank must all send out of it, so that no rate exceeds the capacity that leaves the
    set over its number of ranks. A source that feeds all ranks at a rate can send that of all to every rank exactly if
    no set forbids it: where a flow falls short, its smallest cut is a set that allows less, which is tried next.
    """
    size = len(capacity)
    entering = capacity.sum(axis=0)[:ranks]
    worst = int(entering.argmin())
    side = np.arange(size) != worst
    rate = Fraction(int(entering[worst]), max(ranks - 1, 1))
    while rate > 0:
        fed = _fed(capacity * rate.denominator, ranks, rate.numerator)
        enough = ranks * rate.numerator
        flows = max_flows(fed, [Question(size, rank) for rank in range(ranks)], enough)
        if flows.min() == enough:
            return rate, side
        side = source_side(fed, size, int(flows.argmin()))[:size]
        rate = Fraction(int(capacity[np.ix_(side, ~side)].sum()), int(side[:ranks].sum()))
    raise LaconicError(f"some ranks cannot be reached from all others: nothing leads out of {np.flatnonzero(side)}")


def _fed(capacity: Matrix, ranks: int, amount: int) -> Matrix:
    """Return the graph with one more node, which feeds so much to every rank."""
    fed = np.pad(capacity, (0, 1))
    fed[-1, :ranks] = amount
    return fed
