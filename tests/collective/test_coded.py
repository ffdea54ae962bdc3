"""Compressors inside programs: every message is encoded, whoever adds decodes, and all end with the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import laconic
from laconic.collective.chunk_memory import coded_bytes
from laconic.collective.generators import generators, make_program
from laconic.collective.program import Program
from laconic.compression.codec import Codec
from laconic.compression.per_hop import CodeOfHops, OnEveryHop
from laconic.compression.raw import Raw
from laconic.errors import ProgramError, StrategyError
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.meeting import Meeting
from laconic.strategy import Strategy
from laconic.testing.in_memory import run_in_memory
from laconic.worker import Coding
from tests.compression.table import compressor
from tests.virtual.test_equivalence import train_among

ALL_REDUCES = sorted(one.name for one in generators("all_reduce"))


def codec(text: str) -> Codec:
    made = compressor(f"{text}+per_hop")
    assert isinstance(made, OnEveryHop)
    return made.inner


def programs(size: int) -> list[Program]:
    found = []
    for name in ALL_REDUCES:
        try:
            found.append(make_program(name, size, 2 if size % 2 == 0 else 1))
        except ProgramError:
            continue  # it is not for so many ranks
    return found


def codings(code: Codec, lengths: tuple[int, ...], size: int) -> list[Coding]:
    """Each rank's coding of vectors of these lengths."""
    return [
        Coding(tuple(CodeOfHops(code, Meeting(rank, size, 3, f"x{k}")) for k in range(len(lengths))), lengths)
        for rank in range(size)
    ]


def normals(size: int, numel: int, seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=draw) for _ in range(size)]


@pytest.mark.parametrize("text", ["int8", "qsgd", "cast_fp16", "scaled_sign"])
@pytest.mark.parametrize("size", [2, 3, 6])
def test_all_ranks_end_with_the_same_bits_under_every_program(text: str, size: int) -> None:
    """Also with random rounding, where two ranks that hold a sum must draw the same numbers; also where a chunk has no
    element of some vector."""
    lengths = (301, 5, 64)
    for program in programs(size):
        vectors = normals(size, sum(lengths), seed=size)
        exact = torch.stack(vectors).double().sum(0)
        found = run_in_memory(program, vectors, codings(codec(text), lengths, size))
        assert all(torch.equal(x, found[0]) for x in found), program.name
        if text in ("int8", "cast_fp16"):
            assert (found[0] - exact).norm() < 0.05 * exact.norm(), program.name


@settings(max_examples=12, deadline=None, derandomize=True)
@given(size=st.integers(2, 9), numel=st.integers(1, 200), seed=st.integers(0, 99))
def test_a_code_that_loses_nothing_gives_the_programs_own_bits(size: int, numel: int, seed: int) -> None:
    for program in programs(size):
        vectors = normals(size, numel, seed)
        plain = run_in_memory(program, [x.clone() for x in vectors])
        coded = run_in_memory(program, vectors, codings(Raw(), (numel,), size))
        assert all(torch.equal(a, b) for a, b in zip(plain, coded, strict=True)), program.name


@pytest.mark.parametrize("name", ["hierarchical", "halving_doubling", "double_tree", "ring"])
def test_the_ledger_counts_encoded_chunks(name: str) -> None:
    """On virtual workers: every send of the program has the bytes of its chunk's message, and nothing else is sent."""
    size, numel = 4, 1001
    program = make_program(name, size, 2)

    def work() -> float:
        worker = connect()
        exchange: Any = InFlight(worker.world.run(program, torch.ones(numel), coding=own[worker.rank]))
        complete([exchange])
        return worker.ledger.sent_bytes()

    own = codings(codec("int8"), (numel,), size)
    nbytes = torch.tensor(coded_bytes(own[0], program.shares))
    sends = program.sends
    for rank, counted in enumerate(laconic.simulate(work, size).results):
        assert counted == int(nbytes[sends.chunk[sends.source == rank]].sum())


def test_fewer_hops_round_less_often() -> None:
    """A chunk of a ring of sixteen is rounded on fifteen hops and once more; one of recursive halving on four."""
    size, numel, errors = 16, 4096, {}
    for name in ("ring", "halving_doubling"):
        program, total = make_program(name, size), 0.0
        for seed in range(3):
            vectors = normals(size, numel, seed)
            exact = torch.stack(vectors).double().sum(0)
            found = run_in_memory(program, vectors, codings(codec("int8"), (numel,), size))
            total += float((found[0] - exact).norm() / exact.norm())
        errors[name] = total
    assert errors["halving_doubling"] < 0.8 * errors["ring"]


@pytest.mark.parametrize("program", ["hierarchical", "auto"])
def test_a_sentence_trains_with_codes_inside_its_program(program: str) -> None:
    strategy = f"bsp / int8+per_hop / collective({program})"
    found = laconic.simulate(lambda: train_among(strategy, None), workers=4).results
    assert all(torch.equal(x, found[0]) for x in found)
    dense = laconic.simulate(lambda: train_among("bsp", None), workers=4).results[0]
    assert not torch.equal(found[0], dense) and (found[0] - dense).norm() < 0.1 * dense.norm()


def test_what_cannot_be_added_on_the_way_is_refused() -> None:
    with pytest.raises(StrategyError, match="known length"):
        Strategy.parse("bsp / topk(0.01, index=golomb)+per_hop / collective(hierarchical)")
    with pytest.raises(StrategyError, match="columns"):
        Strategy.parse("bsp / one_bit+per_hop / collective(hierarchical)")
    with pytest.raises(StrategyError):
        Strategy.parse("bsp / int8+per_hop / ps")
