"""Where chunks lie in a rank's buffers: in place, but for the all-to-all, which has both."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.collective.relation import RELATIONS, Relation
from laconic.collective.thread_blocks import Location
from laconic.errors import LaconicError

Place = tuple[int, int]
"""A rank, and a chunk."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each rank has which chunk before and after.

    - `collective`: the relation's name where it is the standard one, and `custom` otherwise.
    - `in_place`: whether input and output are the same memory.
    - `start`, `end`: the places before and after.
    - `inputs`, `outputs`: of how many chunks the buffers consist.
    """

    collective: str
    in_place: bool
    start: dict[Place, Location]
    end: dict[Place, Location]
    inputs: int
    outputs: int

    def memory(self, rank: int, at: Location) -> Location:
        """Return the one name of a place that has two, since input and output overlap."""
        buffer, offset = at
        if not self.in_place or buffer == "s":
            return at
        if self.collective == "all_gather":
            return ("o", offset + rank * self.inputs) if buffer == "i" else at
        if self.collective == "reduce_scatter":
            return ("i", offset + rank * self.outputs) if buffer == "o" else at
        return "i", offset


def is_standard(relation: Relation) -> bool:
    """Whether a relation is the one of its name, with the default root."""
    try:
        return relation.name in RELATIONS and RELATIONS[relation.name](relation.size, relation.chunks).same_as(relation)
    except LaconicError:
        return False


def layout(relation: Relation, in_place: bool | None = None) -> Layout:
    """Return where a relation's chunks lie.

    An input or output that has a rank's own block alone begins with it. In an all-to-all the block for rank j is the
    j-th of the input, and the block of rank i is the i-th of the output.

    - `relation`: who holds which chunk before and after.
    - `in_place`: whether input and output are the same memory, where that is not as usual.
    """
    name = relation.name if is_standard(relation) else "custom"
    whole, block = relation.chunks, relation.chunks // relation.size
    each = block // relation.size
    sizes = {"all_gather": (block, whole), "reduce_scatter": (whole, block), "all_to_all": (block, block)}
    inputs, outputs = sizes.get(name, (whole, whole))

    def start(rank: int, chunk: int) -> Location:
        return "i", chunk % block if name == "all_to_all" else chunk - rank * block * (name == "all_gather")

    def end(rank: int, chunk: int) -> Location:
        if name == "all_to_all":
            return "o", chunk // block * each + chunk % each
        return "o", chunk - rank * block * (name == "reduce_scatter")

    together = name != "all_to_all" if in_place is None else in_place
    found = Layout(name, together, {}, {}, inputs, outputs)
    for held, places, at in ((relation.before, found.start, start), (relation.after, found.end, end)):
        for rank, chunk in (divmod(place, relation.chunks) for place in held.tolist()):
            places[rank, chunk] = found.memory(rank, at(rank, chunk))
    return found
