"""Two cycles through all nodes of a two-dimensional torus that share no link: one ring in each of two directions."""

from __future__ import annotations

import random

from laconic.errors import LaconicError

_TRIES = 100_000


def two_cycles(rows: int, columns: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return two such cycles as nodes in order; node (i, j) has the number i·columns + j.

    They grow from the rows' cycles and the columns' cycles. Where two neighbouring links of one lie across two of the
    other, so that the four make a square, exchanging them joins or parts cycles; exchanges at random that leave no
    more cycles than before are kept until one of each is left. (All such tori have two: Kotzig, 1973.)
    """
    cells = [(i, j) for i in range(rows) for j in range(columns)]
    along = dict.fromkeys(cells, 0)  # which of the two owns the link from (i, j) to (i, j + 1)
    across = dict.fromkeys(cells, 1)  # … and to (i + 1, j)
    chance, count = random.Random(0), rows + columns
    for _ in range(_TRIES):
        if count == 2:
            return _cycles(along, across, rows, columns, 0)[0], _cycles(along, across, rows, columns, 1)[0]
        i, j = chance.choice(cells)
        below, right = ((i + 1) % rows, j), (i, (j + 1) % columns)
        if along[i, j] != along[below] or across[i, j] != across[right] or along[i, j] == across[i, j]:
            continue
        _exchange(along, across, (i, j), below, right)
        found = sum(len(_cycles(along, across, rows, columns, owner)) for owner in (0, 1))
        if found <= count:
            count = found
        else:
            _exchange(along, across, (i, j), below, right)
    raise LaconicError(f"no two cycles without a common link were found in a torus of {rows} x {columns}")


_Cell = tuple[int, int]


def _exchange(along: dict[_Cell, int], across: dict[_Cell, int], here: _Cell, below: _Cell, right: _Cell) -> None:
    for owners, cell in ((along, here), (along, below), (across, here), (across, right)):
        owners[cell] = 1 - owners[cell]


def _cycles(
    along: dict[_Cell, int], across: dict[_Cell, int], rows: int, columns: int, owner: int
) -> list[tuple[int, ...]]:
    """Return the cycles of one owner; every node has two of its links."""
    neighbours: dict[_Cell, list[_Cell]] = {cell: [] for cell in along}
    for owners, (down, on) in ((along, (0, 1)), (across, (1, 0))):
        for (i, j), own in owners.items():
            if own == owner:
                other = (i + down) % rows, (j + on) % columns
                neighbours[i, j].append(other)
                neighbours[other].append((i, j))
    found, left = [], dict.fromkeys(along)
    while left:
        cell: _Cell | None = next(iter(left))
        cycle = []
        while cell is not None:
            left.pop(cell)
            cycle.append(cell[0] * columns + cell[1])
            cell = next((other for other in neighbours[cell] if other in left), None)
        found.append(tuple(cycle))
    return found
