"""MPI's collectives: any relation, with blocks of any lengths and from any root, by the program chosen for the size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from torch import Tensor

from laconic.collective.choose import Selection
from laconic.collective.chunk_memory import cuts
from laconic.collective.execute import execute_blocks
from laconic.collective.program import Program
from laconic.collective.relation import broadcast, gather, reduce, scatter
from laconic.collective.sends import Sends
from laconic.errors import ProgramError
from laconic.registry import technique
from laconic.worker import Communication, Group

OF_RANKS = {"all_gather", "reduce_scatter", "scatter", "gather"}
"""Relations in which block i belongs to rank i."""

ROOTED = {"broadcast": broadcast, "reduce": reduce, "scatter": scatter, "gather": gather}
"""Relations with a root."""


@technique(
    "mpi",
    axis="architecture",
    paper="MPI Forum, 1994; Gabriel et al. (Open MPI), EuroPVM/MPI 2004; Thakur et al., IJHPCA 2005",
    why_no_word="It is an interface of many collectives; its all-reduces train as `collective(ring)` and others.",
)
def collective(
    selection: Selection, given: Tensor, counts: Sequence[int], group: Group, root: int = 0
) -> Communication[Tensor]:
    """Carry out a collective by the program that is the cheapest for these lengths, and return what this member has
    after it. The communication is MPI's request: it can be started now and completed later.

    - `selection`: the programs of one relation by size, of which all members have the same.
    - `given`: what this member has before, flat: a vector (all-reduce, reduce; the root's in a broadcast), its block
      (all-gather, gather), or blocks one after the other (reduce-scatter, all-to-all; the root's in a scatter). Others
      give an empty tensor.
    - `counts`: the elements of each block, which may differ, the same list at all members: one for a vector, one for
      each rank where blocks belong to ranks, and row by row one for each pair in an all-to-all.
    - `root`: the rank that has what is broadcast or scattered, or gets what is reduced or gathered.
    """
    ranks = group.size if selection.programs[0].relation.name == "all_to_all" else 1
    program = selection.at(sum(counts) / ranks * given.element_size())
    if root:
        program = at_root(program, root)
    return execute_blocks(program, given, chunk_counts(program, counts), group)


def chunk_counts(program: Program, counts: Sequence[int]) -> list[int]:
    """Return the elements of each chunk of a program, where those of each block are given."""
    name = program.relation.name
    blocks = {"all_to_all": program.size**2}.get(name, program.size if name in OF_RANKS else 1)
    if len(counts) != blocks:
        raise ProgramError(f"an {name} of {program.size} ranks has {blocks} blocks, not {len(counts)}")
    parts = program.shares.reshape(blocks, -1)
    return [
        end - start for shares, count in zip(parts, counts, strict=True) for start, end in pairwise(cuts(shares, count))
    ]


def at_root(program: Program, root: int) -> Program:
    """Return a program of a relation with a root for another one: all ranks are moved on by so many, and with them the
    blocks that belong to them."""
    name = program.relation.name
    if name not in ROOTED or not 0 <= root < program.size:
        raise ProgramError(f"an {name} of {program.size} ranks cannot have its root at {root}")
    table = program.sends.table
    table[:, 1:3] = (table[:, 1:3] + root) % program.size
    shares = program.shares
    if name in OF_RANKS:
        step = program.chunks // program.size * root
        table[:, 3] = (table[:, 3] + step) % program.chunks
        shares = np.roll(shares, step)
    return Program(program.name, ROOTED[name](program.size, program.chunks, root), Sends.of(table), shares)
