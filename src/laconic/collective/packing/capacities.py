"""The rates of a graph's links as integers, which maximum flows are exact for."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from laconic.network.graph import Graph

Matrix = NDArray[np.int64]
FINEST = 2**16


def integer_rates(graph: Graph) -> tuple[Matrix, float]:
    """Return the rate of each link from a row's node to a column's in units, and a unit in bits per second.

    Rates that are small multiples of one rate stay exact. Others are rounded down to multiples of the fastest one's
    65536th part, so that what is found never asks more of a link than it has.
    """
    rates = graph.bits_per_second
    unit = float(rates.max()) / FINEST if len(rates) else 1.0
    if (rates == np.floor(rates)).all() and len(rates):
        common = math.gcd(*(int(rate) for rate in rates))
        unit = float(common) if rates.max() / common <= FINEST else unit
    matrix = np.zeros((graph.nodes, graph.nodes), dtype=np.int64)
    matrix[graph.ends[:, 0], graph.ends[:, 1]] = np.floor(rates / unit * (1 + 1e-12)).astype(np.int64)
    return matrix, unit
