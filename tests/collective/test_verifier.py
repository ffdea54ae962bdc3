"""A program that does not do what its relation says cannot be constructed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from laconic.collective.generators import make_program
from laconic.collective.program import COPY, REDUCE, Program, Sends
from laconic.collective.relation import all_gather, all_reduce, broadcast
from laconic.collective.verify import verify
from laconic.errors import ProgramError
from tests.collective.brute_force import some_order_is_wrong


def mutant(sends: Sends, size: int, chunks: int, draw: np.random.Generator) -> Sends:
    """Change one thing: drop, double or redirect a send, send another chunk, copy in place of adding, or swap steps."""
    table = sends.table
    row, other = draw.integers(len(table), size=2)
    match draw.integers(7):
        case 0:
            table = np.delete(table, row, axis=0)
        case 1:
            table = np.concatenate([table, table[[row]]])
        case 2:
            table = np.concatenate([table, table[[row]] + [1, 0, 0, 0, 0]])
        case 3:
            end = draw.integers(1, 3)
            table[row, end] = draw.choice([r for r in range(size) if r != table[row, 3 - end]])
        case 4:
            table[row, 3] = draw.integers(chunks)
        case 5:
            table[row, 4] = 1 - table[row, 4]
        case 6:
            table[[row, other], 0] = table[[other, row], 0]
    return Sends.of(table)


def refused(program: Program, sends: Sends) -> bool:
    try:
        verify("a mutant", program.relation, sends)
    except ProgramError:
        return True
    return False


SMALL = [
    ("ring", 3),
    ("binomial", 4),
    ("recursive_doubling", 3),
    ("recursive_doubling", 4),
    ("direct", 3),
    ("halving_doubling", 3),
    ("ring_gather", 3),
    ("bruck", 3),
    ("leader", 3),
]


def compared(count: int, seed: int) -> tuple[int, int]:
    """How many of so many mutants are refused, and how many the brute force finds wrong; they are the same ones."""
    draw, found = np.random.default_rng(seed), [0, 0]
    for k in range(count):
        name, size = SMALL[k % len(SMALL)]
        program = make_program(name, size)
        sends = mutant(program.sends, size, program.chunks, draw)
        for _ in range(int(draw.integers(2))):
            sends = mutant(sends, size, program.chunks, draw)
        ours, theirs = refused(program, sends), some_order_is_wrong(program.relation, sends)
        assert ours == theirs, (name, size, sends.table.tolist())
        found[0] += ours
        found[1] += theirs
    return found[0], found[1]


def test_the_verifier_refuses_exactly_what_some_order_of_messages_gets_wrong() -> None:
    refusals, wrong = compared(1000, seed=1)
    assert 500 <= refusals == wrong < 1000


def test_right_programs_are_right_in_every_order() -> None:
    for name, size in SMALL:
        program = make_program(name, size)
        assert not some_order_is_wrong(program.relation, program.sends), name


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "rank 0 ends with a sum of chunk 0 that lacks the contributions of 1 ranks: 1"),
        ([(0, 0, 1, 0, REDUCE)], "rank 0 ends with a sum of chunk 0 that lacks"),
        ([(0, 0, 1, 0, REDUCE), (0, 1, 0, 0, REDUCE), (1, 0, 1, 0, REDUCE)], "rank 1 holds something undefined"),
        ([(0, 0, 0, 0, REDUCE)], "rank 0 sends to itself"),
        ([(0, 0, 2, 0, REDUCE)], "sends with rank 2, and there are 2"),
        ([(0, 0, 1, 3, REDUCE)], "sends with chunk 3, and there are 1"),
    ],
)
def test_refusals_name_a_rank_and_the_cause(rows: list[tuple[int, int, int, int, int]], reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        Program.of("mine", all_reduce(2, 1), rows)


def test_a_chunk_is_not_sent_before_it_is_there() -> None:
    with pytest.raises(ProgramError, match="rank 2 holds something undefined as chunk 0 since step 0"):
        Program.of("early", broadcast(3, 1), [(0, 0, 1, 0, COPY), (0, 1, 2, 0, COPY)])
    with pytest.raises(ProgramError, match="rank 0 never gets chunk 1"):
        Program.of("short", all_gather(2, 2), [(0, 0, 1, 0, COPY)])


def test_two_messages_of_a_step_that_write_one_chunk_are_refused_unless_the_order_is_all_the_same() -> None:
    added = [(0, 1, 0, 0, REDUCE), (0, 2, 0, 0, REDUCE), (1, 0, 1, 0, COPY), (1, 0, 2, 0, COPY)]
    Program.of("both added", all_reduce(3, 1), added)
    with pytest.raises(ProgramError):
        Program.of("one added", all_reduce(3, 1), [(0, 1, 0, 0, COPY), *added[1:]])


@pytest.mark.parametrize("size", [64, pytest.param(1024, marks=pytest.mark.long)])
def test_many_ranks_are_verified(size: int) -> None:
    """With a send less a program is refused, and the first rank that lacks something is named."""
    program = make_program("torus", size)
    assert program.steps == 4 * (math.isqrt(size) - 1) and len(program.sends) == 2 * size * (size - 1)
    with pytest.raises(ProgramError, match="lacks"):
        verify("short", program.relation, Sends.of(np.delete(program.sends.table, 5, axis=0)))
