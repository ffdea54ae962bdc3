"""The formulas of what collectives send are those of the programs."""

from __future__ import annotations

import pytest

from laconic.collective.generators import make_program
from laconic.values.wire import ring_rounds, wire_factor


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 16])
def test_formulas_are_what_programs_send(size: int) -> None:
    for operation, name, share in (
        ("all_reduce", "ring", 1),
        ("reduce_scatter", "ring_scatter", 1),
        ("all_gather", "ring_gather", size),  # a payload is one of so many blocks of the gathered vector
        ("all_to_all", "pairwise", 1),
        ("broadcast", "binomial_broadcast", 1),
    ):
        program = make_program(name, size)
        assert program.sent_shares.max() * share == pytest.approx(wire_factor(operation, size)), operation
        if operation != "broadcast":
            assert program.steps == ring_rounds(operation, size)
    assert make_program("binomial_broadcast", size).steps == wire_factor("broadcast", size)
