"""Programs made of programs: one after the other, backwards, side by side, on other ranks, in a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from laconic.collective.program import COPY, REDUCE, Program, Sends
from laconic.collective.relation import Relation, all_reduce
from laconic.errors import ProgramError

_BACKWARDS = {
    "reduce_scatter": "all_gather",
    "all_gather": "reduce_scatter",
    "broadcast": "reduce",
    "reduce": "broadcast",
    "scatter": "gather",
    "gather": "scatter",
}


def then(first: Program, second: Program, name: str = "", relation: Relation | None = None) -> Program:
    """Return a program that runs one after the other on the same chunks.

    What it does is from the first one's before to the second one's after, unless a relation is given: the sum of a
    reduce-scatter is what its all-gather spreads.
    """
    if (first.size, first.chunks) != (second.size, second.chunks):
        raise ProgramError(f"{first!r} and {second!r} have other ranks or chunks and cannot follow each other")
    a, b = first.sends.table, second.sends.table
    whole = relation or replace(first.relation, name=f"{first.relation.name}, {second.relation.name}")
    if relation is None:
        whole = replace(whole, after=second.relation.after)
    rows = np.concatenate([a, b + np.array([first.steps, 0, 0, 0, 0])])
    return Program(name or f"{first.name} then {second.name}", whole, Sends.of(rows), first.shares)


def reverse(program: Program, name: str = "") -> Program:
    """Return the program that sends everything back, the last first: copies of a chunk become contributions to a sum.

    An all-gather becomes a reduce-scatter, a broadcast a reduce, and the other way round.
    """
    what = program.relation
    if what.name not in _BACKWARDS:
        raise ProgramError(f"an {what.name} backwards is no collective; reverse one of {', '.join(_BACKWARDS)}")
    table = program.sends.table[::-1].copy()
    table[:, 0] = program.steps - 1 - table[:, 0]
    table[:, [1, 2]] = table[:, [2, 1]]
    into_sum = len(what.after) > len(what.before)
    table[:, 4] = REDUCE if into_sum else COPY
    back = Relation(_BACKWARDS[what.name], what.size, what.chunks, what.after, what.before, what.pieces)
    return Program(name or f"reversed {program.name}", back, Sends.of(table), program.shares)


def gather_after_scatter(scatter: Program, name: str, mirrored: Program | None = None) -> Program:
    """Return the all-reduce of a reduce-scatter and the same backwards, or another reduce-scatter backwards: that of
    `mirrored`, which sends in the opposite direction, sends backwards in the same one."""
    return then(scatter, reverse(mirrored or scatter), name, all_reduce(scatter.size, scatter.chunks))


def spread_after_sum(spread: Program, name: str) -> Program:
    """Return the all-reduce of an all-gather or broadcast: the same backwards, and then the program itself."""
    return then(reverse(spread), spread, name, all_reduce(spread.size, spread.chunks))


def spread_while_summing(spread: Program, name: str) -> Program:
    """Return the all-reduce of a broadcast in chunks: the same backwards, with each chunk spread once it is summed.

    Sums and what is spread go over the same links in opposite directions, so that a rank which only sends its chunks
    and receives sums is done in half the time. Chunks are summed in the order in which they are spread.
    """
    up, down = reverse(spread).sends.table, spread.sends.table
    up[:, 3] = spread.chunks - 1 - up[:, 3]
    summed, begun = np.zeros(spread.chunks, np.int64), np.full(spread.chunks, spread.steps)
    np.maximum.at(summed, up[:, 3], up[:, 0] + 1)
    np.minimum.at(begun, down[:, 3], down[:, 0])
    down[:, 0] += np.max(summed - begun)
    return Program(name, all_reduce(spread.size, spread.chunks), Sends.of(np.concatenate([up, down])), spread.shares)


def relabel(program: Program, ranks: Sequence[int]) -> Program:
    """Return the program in which rank `ranks[k]` does what rank k does, for relations in which all ranks are alike
    or chunks move with them: chunks keep their numbers, so that only an all-reduce stays what it is."""
    if sorted(ranks) != list(range(program.size)):
        raise ProgramError(f"{list(ranks)} is no order of {program.size} ranks")
    table, places = program.sends.table, np.asarray(ranks)
    table[:, 1:3] = places[table[:, 1:3]]

    def moved(held: NDArray[np.int64]) -> NDArray[np.int64]:
        rank, chunk = np.divmod(held, program.chunks)
        return np.sort(places[rank] * program.chunks + chunk)

    what = program.relation
    return Program(
        program.name, replace(what, before=moved(what.before), after=moved(what.after)), Sends.of(table), program.shares
    )


def beside(programs: Sequence[Program], weights: Sequence[float], name: str) -> Program:
    """Return programs side by side, each on its share of the vector, step by step at the same time.

    The weights are positive and are scaled to a sum of one.
    """
    if len(programs) != len(weights) or min(weights, default=0) <= 0:
        raise ProgramError(f"{len(programs)} programs need as many positive weights, not {list(weights)}")
    size, starts = programs[0].size, np.cumsum([0, *(program.chunks for program in programs)])
    total = float(sum(weights))

    def places(held: str) -> NDArray[np.int64]:
        parts = []
        for program, start in zip(programs, starts, strict=False):
            rank, chunk = np.divmod(getattr(program.relation, held), program.chunks)
            parts.append(rank * starts[-1] + start + chunk)
        return np.sort(np.concatenate(parts))

    tables = [p.sends.table + np.array([0, 0, 0, start, 0]) for p, start in zip(programs, starts, strict=False)]
    shares = np.concatenate([p.shares * w / total for p, w in zip(programs, weights, strict=True)])
    kind = programs[0].relation
    relation = Relation(kind.name, size, int(starts[-1]), places("before"), places("after"), int(starts[-1]))
    return Program(name, relation, Sends.of(np.concatenate(tables)), shares)


def pipeline(program: Program, blocks: int, every: int = 1, name: str = "") -> Program:
    """Return the program with each chunk cut into so many blocks, of which each begins `every` steps after the last."""
    if blocks < 1 or every < 1:
        raise ProgramError(f"a pipeline has at least one block and one step between two, not {blocks} and {every}")
    table = program.sends.table
    cuts = [
        np.stack([table[:, 0] + every * j, *table[:, 1:3].T, table[:, 3] * blocks + j, table[:, 4]], axis=1)
        for j in range(blocks)
    ]
    shares = np.repeat(program.shares / blocks, blocks)
    return Program(name or program.name, program.relation.cut(blocks), Sends.of(np.concatenate(cuts)), shares)
