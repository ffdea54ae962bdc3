"""Hidden groups of ranks that sit close together, found from the distances between all pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import squareform

from laconic.errors import LaconicError


def find_groups(distance: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the group of each rank, of so many groups of equal size.

    Ranks that are close on average are joined until so many groups are left; then each rank takes a place in the group
    whose members are nearest, all groups having equally many places, until nothing changes.
    """
    size = len(distance)
    if count < 1 or size % count:
        raise LaconicError(f"{size} ranks are no {count} groups of equal size")
    if count in (1, size):
        return np.arange(size) % count
    tree = linkage(squareform(distance, checks=False), method="average")
    groups: NDArray[np.int64] = fcluster(tree, count, criterion="maxclust").astype(np.int64) - 1
    for _ in range(size):
        members = np.eye(count)[groups]
        others = members.sum(axis=0) - members  # how many of each group there are beside the rank itself
        near = np.where(others > 0, distance @ members / np.maximum(others, 1), distance.max())
        places = np.repeat(np.arange(count), size // count)
        moved = places[linear_sum_assignment(near[:, places])[1]]
        if np.array_equal(moved, groups):
            break
        groups = moved
    return groups
