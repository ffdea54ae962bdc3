"""Programs as instructions of thread blocks: the same results however they go on, fused or not, and never stuck."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from laconic.collective.dependence import earliest
from laconic.collective.generators import generators, make_program
from laconic.collective.instructions import Instructions
from laconic.collective.interpreter import interpret
from laconic.collective.layout import Place, layout
from laconic.collective.lifting import lift
from laconic.collective.lowering import lower
from laconic.collective.program import REDUCE, Program
from laconic.collective.progress import Deadlock
from laconic.collective.relation import all_reduce
from laconic.collective.thread_blocks import RECEIVES, SENDS, Instruction, ThreadBlock
from laconic.collective.tracing import traced
from laconic.errors import ProgramError
from tests.collective.traces import all_pairs, hierarchical, ring

NAMES = [one.name for one in generators()]
SIZES = (1, 2, 3, 4, 6)


def programs(name: str) -> list[Program]:
    found = []
    for size in SIZES:
        try:
            found.append(make_program(name, size, 1))
        except ProgramError:
            continue
    return found


def drawn(program: Program, seed: int) -> dict[Place, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {place: draw.normal(size=5).astype(np.float32) for place in layout(program.relation).start}


def carried_out(program: Program, inputs: dict[Place, np.ndarray]) -> dict[Place, np.ndarray]:
    """What the definition of a step gives."""
    held, table = dict(inputs), program.sends.table
    for step in range(program.steps):
        before = dict(held)
        for _, source, to, chunk, op in table[table[:, 0] == step].tolist():
            held[to, chunk] = held[to, chunk] + before[source, chunk] if op == REDUCE else before[source, chunk]
    return {place: held[place] for place in layout(program.relation).end}


def total(code: Instructions) -> Counter[str]:
    return sum(code.counts, Counter[str]())


@pytest.mark.technique("mscclang", check=3)
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_fused_or_not_all_orders_of_progress_give_the_programs_bits(name: str, slots: int) -> None:
    for program in programs(name):
        inputs = drawn(program, program.size)
        expected = carried_out(program, inputs)
        for fuse in (True, False):
            code = lower(program, fuse, slots)
            for seed in range(3):
                found = interpret(code, inputs, np.random.default_rng(seed))
                assert found.keys() == expected.keys()
                for place, values in expected.items():
                    np.testing.assert_array_equal(found[place], values, err_msg=f"{name}, {program.size}, {place}")


@pytest.mark.technique("mscclang", check=3)
@pytest.mark.parametrize("size", [2, 3, 4, 7, 12])
def test_a_fused_ring_has_one_send_and_one_receive(size: int) -> None:
    for program in (make_program("ring", size), traced("ring", all_reduce(size, size), ring)):
        plain, fused = lower(program, fuse=False), lower(program)
        for rank in range(size):
            assert plain.counts[rank] == Counter(s=2 * (size - 1), rrc=size - 1, r=size - 1)
            assert fused.counts[rank] == +Counter(s=1, rrs=size - 2, rrcs=1, rcs=size - 2, r=1)
            assert sum(fused.counts[rank][kind] for kind in ("rrs", "rrcs", "rcs")) == 2 * size - 3
            assert len(fused.blocks[rank]) == 1


@pytest.mark.technique("mscclang", check=3)
@pytest.mark.parametrize("name", NAMES)
def test_fusion_lowers_the_count_by_one_for_each_pair_and_never_raises_it(name: str) -> None:
    for program in programs(name):
        plain, fused = total(lower(program, fuse=False)), total(lower(program))
        pairs = fused["rcs"] + fused["rrs"] + fused["rrcs"]
        assert sum(fused.values()) == sum(plain.values()) - pairs
        for kinds in (SENDS, RECEIVES):
            assert sum(plain[kind] for kind in kinds) == sum(fused[kind] for kind in kinds) == len(program.sends)
    assert pairs or name in ("pairwise", "direct_exchange", "direct_scatter", "direct_gather"), "nothing is passed on"


def test_what_stands_in_each_others_way_is_taken_apart() -> None:
    """With one slot all ranks of a fused ring would wait for the next to take what they have sent before."""
    code = lower(make_program("ring", 4), slots=1)
    assert 0 < total(code)["s"] < total(lower(make_program("ring", 4), fuse=False))["s"]
    with pytest.raises(Deadlock, match="wait for each other for ever"):
        replace(lower(make_program("ring", 4)), slots=1)


def test_a_send_that_finds_its_connection_full_while_nobody_can_go_on_gets_another_channel() -> None:
    """Ranks 0 and 1 exchange two chunks, each in the order in which the other does not need them: a message can be
    added only when the chunk to which it is added has been sent, and that waits for the other message to be taken."""
    rows = [(0, 0, 1, 0, REDUCE), (0, 0, 1, 1, REDUCE), (0, 1, 0, 1, REDUCE), (0, 1, 0, 0, REDUCE)]
    program = Program.of("crossed", all_reduce(2, 2), rows)
    narrow, wide = lower(program, slots=1), lower(program, slots=2)
    assert {block.channel for rank in narrow.blocks for block in rank} == {0, 1}
    assert {block.channel for rank in wide.blocks for block in rank} == {0}
    inputs = drawn(program, 1)
    for code in (narrow, wide):
        for place, values in interpret(code, inputs, np.random.default_rng(2)).items():
            np.testing.assert_array_equal(values, carried_out(program, inputs)[place])


@pytest.mark.parametrize("name", NAMES)
def test_instructions_become_the_program_again(name: str) -> None:
    for program in programs(name):
        for fuse in (True, False):
            assert lift(lower(program, fuse)) == earliest(program)


def test_traced_programs_become_instructions_and_back() -> None:
    for write in (ring, all_pairs, hierarchical):
        program = traced("traced", all_reduce(4, 4), write)
        assert lift(lower(program)) == program


@pytest.mark.parametrize("name", ["direct", "recursive_doubling", "binary_tree"])
def test_without_a_wait_instructions_are_refused_or_it_was_implied(name: str) -> None:
    """Without one of its waits, an instruction leaves an order to chance, unless messages imply that order."""
    program = make_program(name, 4)
    code, inputs, refused = lower(program), drawn(program, 3), 0
    for rank, blocks in enumerate(code.blocks):
        for one, block in enumerate(blocks):
            for position, step in enumerate(block.instructions):
                if not step.waits:
                    continue
                try:
                    fewer = replace(code, blocks=_with(code, rank, one, position, replace(step, waits=())))
                except ProgramError as error:
                    assert "does not wait for instruction" in str(error)
                    refused += 1
                    continue
                for place, values in interpret(fewer, inputs, np.random.default_rng(refused)).items():
                    np.testing.assert_array_equal(values, carried_out(program, inputs)[place])
    assert refused > 3


def _with(
    code: Instructions, rank: int, one: int, position: int, step: Instruction
) -> tuple[tuple[ThreadBlock, ...], ...]:
    blocks = [list(several) for several in code.blocks]
    steps = list(blocks[rank][one].instructions)
    steps[position] = step
    blocks[rank][one] = replace(blocks[rank][one], instructions=tuple(steps))
    return tuple(map(tuple, blocks))


def two(first: ThreadBlock, *second: ThreadBlock) -> Instructions:
    what = all_reduce(2, 1)
    return Instructions("by hand", what, layout(what), ((first,), second))


SEND, ADD = Instruction("s", ("i", 0)), Instruction("rrc", ("i", 0), ("i", 0))


def test_wrong_thread_blocks_are_refused_in_a_sentence() -> None:
    right = ThreadBlock(1, 1, 0, (SEND, ADD)), ThreadBlock(0, 0, 0, (SEND, ADD))
    assert lift(two(*right)).steps == 1
    with pytest.raises(Deadlock, match="2 thread blocks wait for each other for ever"):
        two(ThreadBlock(1, 1, 0, (ADD, SEND)), ThreadBlock(0, 0, 0, (ADD, SEND)))
    with pytest.raises(ProgramError, match="rank 1 does not wait for instruction 0 of thread block 0"):
        two(right[0], ThreadBlock(-1, 0, 0, (ADD,)), ThreadBlock(0, -1, 0, (SEND,)))
    with pytest.raises(ProgramError, match="1 messages from rank 1 to 0 on channel 0 of by hand are received and not"):
        two(right[0], ThreadBlock(0, 0, 0, (ADD,)))
    with pytest.raises(ProgramError, match="sends 1 times and has rank -1 for it"):
        two(right[0], ThreadBlock(-1, 0, 0, (SEND, ADD)))
    with pytest.raises(ProgramError, match="2 thread blocks of by hand send on one connection"):
        two(right[0], right[1], ThreadBlock(0, -1, 0, (SEND,)))
    with pytest.raises(ProgramError, match="unknown instruction 'x'"):
        two(ThreadBlock(1, 1, 0, (SEND, ADD, Instruction("x"))), right[1])
    with pytest.raises(ProgramError, match="lacks the contributions"):
        lift(two(ThreadBlock(1, -1, 0, (SEND,)), ThreadBlock(-1, 0, 0, (ADD,))))
