"""Traced programs: what is written wrongly is refused in the line that is wrong, and the rest is a program."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.collective.dependence import VersionedSend, earliest, in_steps
from laconic.collective.generators import generators, make_program
from laconic.collective.program import COPY, REDUCE, Program
from laconic.collective.relation import all_gather, all_reduce, broadcast, reduce_scatter
from laconic.collective.tracing import Trace, traced
from laconic.errors import ProgramError
from tests.collective.traces import all_pairs, hierarchical, ring


def rows(program: Program) -> set[tuple[int, ...]]:
    return set(map(tuple, program.sends.table.tolist()))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_a_traced_ring_is_the_ring(size: int) -> None:
    program = traced("ring", all_reduce(size, size), ring)
    assert program.steps == 2 * (size - 1)
    turns = [(t, r, (r + 1) % size) for t in range(size - 1) for r in range(size)]
    by_hand = {(t, r, to, (r - t) % size, REDUCE) for t, r, to in turns}
    by_hand |= {(size - 1 + t, r, to, (r + 1 - t) % size, COPY) for t, r, to in turns}
    assert rows(program) == by_hand


def test_all_pairs_takes_two_steps_and_a_hierarchy_those_of_its_rings() -> None:
    assert traced("all pairs", all_reduce(5, 5), all_pairs).steps == 2
    assert traced("hierarchical", all_reduce(6, 6), lambda trace: hierarchical(trace, 2)).steps == 2 * (1 + 2)


@pytest.mark.technique("mscclang", check=1)
def test_a_stale_reference_is_refused_where_it_is_used() -> None:
    trace = Trace(all_reduce(3, 1), "stale")
    mine, theirs = trace.chunk(0, 0), trace.chunk(1, 0)
    summed = mine.reduce(theirs)
    with pytest.raises(ProgramError, match="chunk 0 of rank 0 was written after this reference"):
        mine.copy(2)
    with pytest.raises(ProgramError, match="chunk 0 of rank 0 was written after this reference"):
        mine.reduce(trace.chunk(2, 0))
    with pytest.raises(ProgramError, match="chunk 0 of rank 0 was written after this reference"):
        trace.chunk(2, 0).reduce(mine)
    old = trace.chunk(2, 0)
    summed.copy(2)
    with pytest.raises(ProgramError, match="chunk 0 of rank 2 was written after this reference"):
        summed.reduce(old)
    several = Trace(all_gather(2, 4), "several")
    both = several.chunk(0, 0, 2)
    several.chunk(0, 1).copy(1).copy(0)
    with pytest.raises(ProgramError, match="chunk 1 of rank 0 was written"):
        both.copy(1)


@pytest.mark.technique("mscclang", check=1)
def test_a_missing_chunk_is_refused_where_it_is_used() -> None:
    trace = Trace(broadcast(3, 2), "missing")
    with pytest.raises(ProgramError, match="rank 1 holds no chunk 0 at this point"):
        trace.chunk(1, 0)
    trace.chunk(0, 0).copy(1)
    trace.chunk(1, 0)
    with pytest.raises(ProgramError, match="rank 1 holds no chunk 1"):
        trace.chunk(1, 0, 2)
    with pytest.raises(ProgramError, match="chunks 0 to 1, not 1 to 2"):
        trace.chunk(0, 1, 2)
    with pytest.raises(ProgramError, match="ranks 0 to 2, not 3"):
        trace.chunk(0, 0).copy(3)
    with pytest.raises(ProgramError, match="rank 0 already holds chunk 1 of rank 0"):
        trace.chunk(0, 1).copy(0)


@pytest.mark.technique("mscclang", check=1)
def test_a_missed_postcondition_is_refused_before_anything_runs() -> None:
    def forgets_one(trace: Trace) -> None:
        trace.chunk(0, 0).reduce(trace.chunk(1, 0)).copy(2)

    with pytest.raises(ProgramError, match="sum of chunk 0 that lacks the contributions of 1 ranks: 2"):
        traced("forgets", all_reduce(3, 1), forgets_one)

    with pytest.raises(ProgramError, match="rank 1 never gets chunk 0"):
        traced("nothing", broadcast(2, 1), lambda trace: None)
    with pytest.raises(ProgramError, match="lacks"):
        traced("nothing", reduce_scatter(2, 2), lambda trace: None)


@pytest.mark.technique("mscclang", check=1)
def test_a_contribution_is_not_added_twice() -> None:
    trace = Trace(all_reduce(3, 1), "twice")
    summed = trace.chunk(0, 0).reduce(trace.chunk(1, 0))
    with pytest.raises(ProgramError, match="rank 0 would add the contribution of 1 to chunk 0 twice"):
        summed.reduce(trace.chunk(1, 0))


def test_references_belong_to_their_trace_and_sums_are_of_the_same_chunks() -> None:
    one, other = Trace(all_reduce(2, 2), "one"), Trace(all_reduce(2, 2), "other")
    with pytest.raises(ProgramError, match="belongs to other, another program than one"):
        one.chunk(0, 0).reduce(other.chunk(1, 0))
    with pytest.raises(ProgramError, match="chunk 1 of rank 1 cannot be added to chunk 0 of rank 0"):
        one.chunk(0, 0).reduce(one.chunk(1, 1))


@pytest.mark.parametrize("name", [one.name for one in generators()])
def test_steps_by_dependence_are_the_fewest_and_keep_the_bits(name: str) -> None:
    for size in (2, 3, 4, 8, 9):
        try:
            program = make_program(name, size, 1)
        except ProgramError:
            continue
        again = earliest(program)
        assert again.steps <= program.steps and earliest(again) == again
        values = np.random.default_rng(size).normal(size=(size, program.chunks)).astype(np.float32)
        np.testing.assert_array_equal(carried_out(again, values), carried_out(program, values))


def carried_out(program: Program, values: np.ndarray) -> np.ndarray:
    held, table = values.copy(), program.sends.table
    for step in range(program.steps):
        before = held.copy()
        for _, source, to, chunk, op in table[table[:, 0] == step].tolist():
            held[to, chunk] = before[source, chunk] + (held[to, chunk] if op == REDUCE else 0)
    return held.ravel()[program.relation.after]


def test_sends_that_wait_for_each_other_have_no_steps() -> None:
    """Rank 1 needs what rank 0 makes of what rank 1 makes."""
    sends = [VersionedSend(0, 1, 0, COPY, 1, 1), VersionedSend(1, 0, 0, COPY, 1, 1)]
    with pytest.raises(ProgramError, match="waits for itself"):
        in_steps(sends)
