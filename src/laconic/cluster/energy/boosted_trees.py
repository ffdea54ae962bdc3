"""Gradient-boosted regression trees, small enough to be trained where they are used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Stump:
    """A split of one feature in two, each side of which is split again or is a value.

    - `feature`, `limit`: those whose feature is at most the limit go left.
    - `left`, `right`: what comes there.
    """

    feature: int
    limit: float
    left: Stump | float
    right: Stump | float


@dataclass(frozen=True)
class Boosted:
    """A sum of trees.

    - `mean`: what the trees correct.
    - `trees`: of which each corrects those before it.
    - `rate`: by how much.
    """

    mean: float
    trees: tuple[Stump | float, ...]
    rate: float

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Return the value of each row.

        - `features`: a row for each.
        """
        found = np.full(len(features), self.mean)
        for tree in self.trees:
            found += self.rate * _values(tree, features)
        return found


def fit_trees(features: np.ndarray, values: np.ndarray, trees: int = 80, depth: int = 3, rate: float = 0.2) -> Boosted:
    """Return trees that predict values, by least squares of what the trees before leave.

    - `features`: a row for each value.
    - `values`: what is predicted.
    - `trees`: how many.
    - `depth`: of each.
    - `rate`: the part of what is left that each corrects.
    """
    mean = float(values.mean())
    left, found = values - mean, list[Stump | float]()
    for _ in range(trees):
        tree = _grown(features, left, depth)
        left = left - rate * _values(tree, features)
        found.append(tree)
    return Boosted(mean, tuple(found), rate)


def _grown(features: np.ndarray, values: np.ndarray, depth: int) -> Stump | float:
    mean = float(values.mean())
    if not depth or len(values) < 4:
        return mean
    best = (0.0, 0, 0.0)
    for feature in range(features.shape[1]):
        order = np.argsort(features[:, feature], kind="stable")
        column, sums = features[order, feature], np.cumsum(values[order] - mean)
        count = np.arange(1, len(values))
        gains = sums[:-1] ** 2 * (1 / count + 1 / (len(values) - count))  # what is explained by a split there
        gains[column[1:] == column[:-1]] = 0.0
        at = int(gains.argmax())
        if gains[at] > best[0] + 1e-15:
            best = (float(gains[at]), feature, float(column[at] + column[at + 1]) / 2)
    if not best[0]:
        return mean
    left = features[:, best[1]] <= best[2]
    sides = (_grown(features[side], values[side], depth - 1) for side in (left, ~left))
    return Stump(best[1], best[2], *sides)


def _values(tree: Stump | float, features: np.ndarray) -> np.ndarray:
    if not isinstance(tree, Stump):
        return np.full(len(features), tree)
    left = features[:, tree.feature] <= tree.limit
    found = np.empty(len(features))
    for side, below in ((left, tree.left), (~left, tree.right)):
        found[side] = _values(below, features[side])
    return found
