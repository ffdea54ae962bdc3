"""Chains of layers with drawn times and sizes, and every way to cut one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, pairwise

from laconic.values.layer_graph import Layer, LayerGraph


def drawn_chain(seed: int, count: int) -> LayerGraph:
    """Layers of 1 to 20 ms, up to 30 MB of output and up to 20 MB of weights."""
    draw = random.Random(seed)
    layers = []
    for i in range(count):
        forward, backward = draw.uniform(1, 7) / 1e3, draw.uniform(1, 13) / 1e3
        layers.append(Layer(f"layer {i}", forward, backward, draw.uniform(0, 3e7), draw.uniform(0, 2e7)))
    return LayerGraph.chain(tuple(layers))


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write a total as so many whole numbers above 0, in order."""
    for cuts in combinations(range(1, total), parts - 1):
        borders = (0, *cuts, total)
        yield tuple(b - a for a, b in pairwise(borders))
