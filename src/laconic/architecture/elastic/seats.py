"""Who meets whom in a round: members have seats, and an arrangement says who may come to a member's group."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count, product
from typing import ClassVar, Protocol

import numpy as np

from laconic.errors import StrategyError

Cell = tuple[int, ...]


@dataclass
class Seat:
    """A member's place: its address ("" before it has entered), its cell, and the round for which it is next grouped,
    for which it waits once it has `joined`."""

    address: str
    cell: Cell
    round: int = 0
    joined: bool = False


class Arrangement(Protocol):
    """Which members form groups, decided from the seats alone. Where they form `at_once`, all groups of a round do so
    when the last member has joined."""

    at_once: ClassVar[bool]

    def free_cell(self, taken: Collection[Cell]) -> Cell:
        """Return the cell of a member that enters."""
        ...

    def candidates(self, seats: Mapping[int, Seat], rank: int) -> list[int]:
        """Return all who may come to this member's group in its round, in the order of their positions. The group forms
        when all of them have joined that round, so that nobody who can come is left out."""
        ...

    def may_meet(self, mine: Seat, other: Seat) -> bool:
        """Return whether the other may come to the group for which I wait."""
        ...

    def place(self, seat: Seat, position: int) -> None:
        """Note a member's position in the group that has formed for its round."""
        ...


@dataclass(frozen=True)
class Grid:
    """Moshpit's grid: in round j those meet who agree on all coordinates but coordinate j mod `dims`, and a member's
    position in the group becomes its new value of that coordinate.

    So two members of one group are in different groups for the next dims - 1 rounds. Cells fill up from the origin:
    M^dims members make a full grid, on which dims rounds average all of them exactly. With one dimension everybody
    meets everybody.
    """

    at_once: ClassVar[bool] = False
    dims: int = 2

    def __post_init__(self) -> None:
        if self.dims < 1:
            raise StrategyError(f"a grid has at least one dimension, not {self.dims}")

    def free_cell(self, taken: Collection[Cell]) -> Cell:
        cells = (cell for side in count() for cell in product(range(side + 1), repeat=self.dims) if max(cell) == side)
        return next(cell for cell in cells if cell not in taken)

    def candidates(self, seats: Mapping[int, Seat], rank: int) -> list[int]:
        mine = seats[rank]
        axis = mine.round % self.dims
        found = [other for other, seat in seats.items() if self.may_meet(mine, seat)]
        return sorted(found, key=lambda other: (seats[other].cell[axis], other))

    def may_meet(self, mine: Seat, other: Seat) -> bool:
        """Return whether we agree on all coordinates but mine of this round and the other's that rounds before it may
        still change."""
        if other.round > mine.round:
            return False
        behind = mine.round - other.round
        apart = (axis for axis, (a, b) in enumerate(zip(mine.cell, other.cell, strict=True)) if a != b)
        return all((mine.round - axis) % self.dims <= behind for axis in apart)

    def place(self, seat: Seat, position: int) -> None:
        axis = seat.round % self.dims
        seat.cell = (*seat.cell[:axis], position, *seat.cell[axis + 1 :])


@dataclass(frozen=True)
class RandomGroups:
    """So many groups of equal size, drawn anew for every round among all who are there: the partition of the paper's
    analysis. Everybody waits for everybody before groups form."""

    at_once: ClassVar[bool] = True
    groups: int
    seed: int = 0

    def free_cell(self, taken: Collection[Cell]) -> Cell:
        return ()

    def candidates(self, seats: Mapping[int, Seat], rank: int) -> list[int]:
        now = seats[rank].round
        if any(seat.round < now or (seat.round == now and not seat.joined) for seat in seats.values()):
            return list(seats)
        order = np.random.default_rng((self.seed, now)).permutation(sorted(seats))
        mine = next(part.tolist() for part in np.array_split(order, self.groups) if rank in part)
        return [other for other in mine if seats[other].round == now]

    def may_meet(self, mine: Seat, other: Seat) -> bool:
        return other.round <= mine.round

    def place(self, seat: Seat, position: int) -> None:
        """Do nothing: the next round's groups do not depend on this one's."""
