"""Every generator makes right programs; programs made of programs are what they should be."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.collective import relation
from laconic.collective.compose import beside, pipeline, relabel, reverse, then
from laconic.collective.generators import Generator, generators, make_program
from laconic.collective.program import Program
from laconic.collective.rings import ring, ring_reduce_scatter
from laconic.errors import ProgramError, StrategyError

ALL = generators()
POWERS = [1, 2, 4, 8, 16, 32]
FEWER = {
    "near_first_halving": POWERS,
    "doubling_gather": POWERS,
    "halving_scatter": POWERS,
    "bml": [1, 4, 9, 16, 25],
    "bcube": POWERS,
}


def summed(program: Program, vectors: np.ndarray) -> np.ndarray:
    """Carry a program out on integers, chunk by chunk, by the definition of a step."""
    held = vectors.copy()
    for step in range(program.steps):
        rows = program.sends.table[program.bounds[step] : program.bounds[step + 1]]
        before = held.copy()
        for _, source, destination, chunk, op in rows.tolist():
            sent = before[source, chunk]
            held[destination, chunk] = held[destination, chunk] + sent if op else sent
    return held


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_programs_exist_for_all_sizes_that_they_are_for(one: Generator) -> None:
    """Where a program exists it has been verified; integers come out exactly, from chunks with other contents."""
    there = []
    for size in range(1, 34):
        try:
            program = one.make(size)
        except ProgramError:
            continue
        there.append(size)
        assert program.relation.name == one.relation and program.size == size
        if size not in (1, 2, 3, 5, 8, 9, 16, 25):
            continue
        vectors = np.random.default_rng(size).integers(-99, 99, (size, program.chunks))
        held = summed(program, vectors)
        before = np.zeros((size, program.chunks), dtype=int)
        before.ravel()[program.relation.before] = vectors.ravel()[program.relation.before]
        expected = np.broadcast_to(before.sum(axis=0), held.shape)
        np.testing.assert_array_equal(held.ravel()[program.relation.after], expected.ravel()[program.relation.after])
    assert there == FEWER.get(one.name, list(range(1, 34)))


def test_a_reduce_scatter_backwards_is_an_all_gather() -> None:
    scatter = ring_reduce_scatter(5)
    gather = reverse(scatter)
    assert gather.relation.same_as(relation.all_gather(5, 5)) and gather.steps == scatter.steps
    assert reverse(gather) == scatter
    with pytest.raises(ProgramError, match="backwards is no collective"):
        reverse(ring(3))


def test_programs_follow_each_other_on_the_same_chunks() -> None:
    scatter = ring_reduce_scatter(4)
    both = then(scatter, reverse(ring_reduce_scatter(4, -1)), relation=relation.all_reduce(4, 4))
    assert both == ring(4)
    with pytest.raises(ProgramError, match="cannot follow"):
        then(scatter, ring(3))


def test_programs_beside_each_other_have_their_shares() -> None:
    both = beside([ring(4), make_program("binomial", 4)], [3, 1], "both")
    assert both.chunks == 5 and both.shares.tolist() == [3 / 16] * 4 + [1 / 4]
    assert both.steps == 6 and both.sent_shares.sum() == pytest.approx(2 * 3)


def test_a_pipeline_cuts_chunks_and_begins_each_block_later() -> None:
    whole = make_program("binomial", 4)
    cut = pipeline(whole, 5, every=2)
    assert cut.chunks == 5 and cut.steps == whole.steps + 2 * 4 and len(cut.sends) == 5 * len(whole.sends)
    np.testing.assert_allclose(cut.sent_shares, whole.sent_shares)


def test_ranks_can_change_places() -> None:
    order = [2, 0, 3, 1]
    moved = relabel(ring(4), order)
    ways = {(a, b) for a, b in zip(moved.sends.source.tolist(), moved.sends.destination.tolist(), strict=True)}
    assert ways == {(2, 0), (0, 3), (3, 1), (1, 2)}
    with pytest.raises(ProgramError, match="no order of 4 ranks"):
        relabel(ring(4), [0, 0, 1, 2])


def test_all_all_reduces_send_at_least_what_is_needed() -> None:
    for one in generators("all_reduce"):
        program = one.make(16)
        assert program.sent_shares.sum() >= 2 * 15 - 1e-9, one.name


def test_an_unknown_program_names_those_that_there_are() -> None:
    with pytest.raises(StrategyError, match=r"there is no program 'rang'; write one of .*ring"):
        make_program("rang", 4)
