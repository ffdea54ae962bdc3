"""What a partition of devices into stages costs: exchanges inside the groups, and the cheapest path through them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from laconic.parallel.placement.device_links import DeviceLinks, Matrix

Groups = tuple[tuple[int, ...], ...]
"""For each group the devices that hold the same stage."""
Integers = NDArray[np.int64]
_Pair = tuple[tuple[int, ...], tuple[int, ...]]


class GroupCosts:
    """Costs of groups of one network, which are kept: devices of one region are the same to it.

    - `links`: between all devices.
    - `replicas`: how many devices hold a stage.
    - `gradient_bytes`: of a stage, exchanged inside its group.
    - `activation_bytes`: between two stages, of one replica's share of a batch.
    """

    def __init__(self, links: DeviceLinks, replicas: int, gradient_bytes: float, activation_bytes: float) -> None:
        self.class_of = links.classes()
        self._exchange = 2 * links.seconds(gradient_bytes / replicas)
        self._send = links.seconds(activation_bytes)
        self._inside: dict[tuple[int, ...], tuple[float, float]] = {}
        self._slowest: dict[_Pair, float] = {}
        self._mean: dict[_Pair, float] = {}
        self._keys: dict[tuple[int, ...], tuple[int, ...]] = {}

    def objective(self, groups: Groups) -> float:
        """Return the slowest group's exchange and twice the cheapest path through all groups, forward and backward."""
        return max(self._of_group(group)[0] for group in groups) + 2 * self.path(groups)[0]

    def path(self, groups: Groups) -> tuple[float, list[int]]:
        """Return the cheapest open path that visits each group once, by Held and Karp's dynamic program, and its
        cost."""
        costs = np.zeros((len(groups), len(groups)))
        for i, one in enumerate(groups):
            for k, other in enumerate(groups[:i]):
                costs[i, k] = costs[k, i] = self._slowest_send(one, other)
        return cheapest_path(costs)

    def relaxed(self, groups: Groups) -> float:
        """Return the objective with mean costs for the largest ones, so that every slow link that is mended counts."""
        inside = sum(self._of_group(group)[1] for group in groups) / len(groups)
        pairs = [self._mean_send(a, b) for i, a in enumerate(groups) for b in groups[:i]]
        return inside + 2 * (len(groups) - 1) * sum(pairs) / max(1, len(pairs))

    def pairing(self, one: Sequence[int], other: Sequence[int]) -> dict[int, int]:
        """Return for each device of one group the device of the other that it sends to."""
        _, columns = bottleneck_matching(self._send[np.ix_(one, other)])
        return {device: other[column] for device, column in zip(one, columns, strict=True)}

    def _of_group(self, group: tuple[int, ...]) -> tuple[float, float]:
        """Return what the exchange takes for the slowest device, and for a device on average."""
        key = self._classes(group)
        if key not in self._inside:
            sums = self._exchange[np.ix_(group, group)].sum(axis=1)
            self._inside[key] = float(sums.max()), float(sums.mean())
        return self._inside[key]

    def _slowest_send(self, one: tuple[int, ...], other: tuple[int, ...]) -> float:
        """Return the slowest send of the pairing of two groups whose slowest send is fastest."""
        key = self._key(one, other)
        if key not in self._slowest:
            self._slowest[key] = bottleneck_matching(self._send[np.ix_(one, other)])[0]
        return self._slowest[key]

    def _mean_send(self, one: tuple[int, ...], other: tuple[int, ...]) -> float:
        """Return the mean send of the pairing of two groups whose mean is least."""
        from scipy.optimize import linear_sum_assignment

        key = self._key(one, other)
        if key not in self._mean:
            costs = self._send[one, :][:, other]
            self._mean[key] = float(costs[linear_sum_assignment(costs)].sum()) / len(one)
        return self._mean[key]

    def _key(self, one: tuple[int, ...], other: tuple[int, ...]) -> _Pair:
        a, b = self._classes(one), self._classes(other)
        return (a, b) if a <= b else (b, a)

    def _classes(self, group: tuple[int, ...]) -> tuple[int, ...]:
        if group not in self._keys:
            self._keys[group] = tuple(sorted(self.class_of[device] for device in group))
        return self._keys[group]


def bottleneck_matching(costs: Matrix) -> tuple[float, list[int]]:
    """Return the perfect matching of rows and columns whose largest cost is smallest: that cost, and each row's column.

    The largest edges are removed as long as a perfect matching remains; by halving, not one by one.
    """
    levels = np.unique(costs).tolist()
    low, high = 0, len(levels) - 1
    best: list[int] | None = None
    while low < high or best is None:
        middle = (low + high) // 2
        found = _perfect_matching((costs <= levels[middle]).tolist())
        if found is None:
            low = middle + 1
        else:
            high, best = middle, found
    return float(levels[high]), best


def _perfect_matching(joined: list[list[bool]]) -> list[int] | None:
    """Return each row's column by augmenting paths; None where some row must go without."""
    row_of: dict[int, int] = {}

    def augment(row: int, tried: set[int]) -> bool:
        for column, is_joined in enumerate(joined[row]):
            if is_joined and column not in tried:
                tried.add(column)
                if column not in row_of or augment(row_of[column], tried):
                    row_of[column] = row
                    return True
        return False

    if not all(augment(row, set()) for row in range(len(joined))):
        return None
    return sorted(row_of, key=lambda column: row_of[column])


def cheapest_path(costs: Matrix) -> tuple[float, list[int]]:
    """Return the cost and the order of the cheapest path that visits every node once and does not return.

    - `costs`: between two nodes, symmetric.
    """
    size = len(costs)
    best = np.full((1 << size, size), np.inf)
    before = np.full((1 << size, size), -1)
    best[1 << np.arange(size), np.arange(size)] = 0.0
    for masks, row, node in _extensions(size):
        ways = best[masks][:, :, None] + costs[None]  # by visited nodes, last node and next node
        last = ways.argmin(axis=1)[row, node]
        longer = masks[row] | 1 << node
        best[longer, node] = ways[row, last, node]
        before[longer, node] = last
    mask, end = (1 << size) - 1, int(best[-1].argmin())
    total, order = float(best[-1, end]), [end]
    while (previous := int(before[mask, end])) >= 0:
        mask, end = mask ^ 1 << end, previous
        order.append(end)
    return total, order


@cache
def _extensions(size: int) -> list[tuple[Integers, Integers, Integers]]:
    """Return, for each number of visited nodes, the sets of so many nodes as bits, and which set is extended by which
    node."""
    masks = np.arange(1 << size)
    visited = np.array([int(mask).bit_count() for mask in masks])
    layers = [masks[visited == count] for count in range(1, size)]
    free = [np.nonzero((layer[:, None] >> np.arange(size)) & 1 == 0) for layer in layers]
    return [(layer, rows, nodes) for layer, (rows, nodes) in zip(layers, free, strict=True)]
