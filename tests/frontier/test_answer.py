"""The verdict at a place, and whether the bytes of prices are those that were counted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from laconic.frontier.answer import Frontier
from laconic.frontier.ledger import disagreements
from laconic.frontier.map import contenders, draw
from laconic.frontier.tables import tables
from laconic.planner.runs import Run
from tests.frontier.rows import ladder

GAPS = {"diloco(30)": 0.01, "local(30)": 0.03, "bsp / power_sgd(4)+ef": 0.02}
COUNTED = {"diloco(30)": 7 / 30, "local(30)": 7 / 30, "bsp / power_sgd(4)+ef": 0.118}


def asked(runs: Sequence[Run], rate: float, size: float) -> Frontier:
    made = tables(runs)
    cell = draw(contenders(made, "bytes", 8), "bytes", 8, (rate,), (size,)).cells[0]
    return Frontier("bytes", 8, rate, size, made, (), (), None, cell)


@pytest.mark.parametrize(
    ("rungs", "size", "rests"),
    [
        (("breadth",), 3e6, "by losses measured at this size"),
        (("breadth",), 1e9, "by losses measured up to 3 M, without a trend"),
        (("breadth", "depth"), 1e9, "by losses measured up to 10 M and their trend"),
    ],
)
def test_a_verdict_says_how_much_faster_and_on_what_it_rests(rungs: tuple[str, ...], size: float, rests: str) -> None:
    found = asked(ladder(GAPS, noise=0.0005, rungs=rungs), 1e8, size)
    assert found.here is not None and found.here.best is not None
    best = found.here.best
    assert found.verdict.startswith(f"`{best.method.name}` reaches the loss of tuned DDP {best.speed_up.middle:.3g} ")
    assert found.verdict.endswith(f"({best.speed_up.low:.3g} to {best.speed_up.high:.3g}), {rests}.")


def test_where_nothing_pays_it_says_what_comes_nearest() -> None:
    sure, unsure = (asked(ladder(GAPS, seeds, noise=0.0005), 400e9, 10e6).verdict for seeds in ((1, 2, 3), (1,)))
    for verdict in (sure, unsure):
        assert verdict.startswith("Nothing pays for certain at 400Gbit, 10 M parameters, 8 workers: keep tuned DDP")
    assert "is the fastest" in sure and "unknown interval" in unsure and "unknown interval" not in sure


def test_without_a_place_it_says_why() -> None:
    found = Frontier("cifar", 8, 1e9, 1e9, tables(ladder(GAPS)), (), (), why_no_map="nothing was measured")
    assert found.verdict == "There is no map: nothing was measured."


def test_bytes_that_the_ledger_counted_otherwise_are_named() -> None:
    def found(counted: dict[str, float]) -> list[str]:
        runs = ladder(GAPS, rungs=("depth",), bytes_per_parameter=counted)
        return list(disagreements(contenders(tables(runs), "bytes", 8), 8))

    assert found(COUNTED) == []
    (sentence,) = found({**COUNTED, "local(30)": 0.3})
    assert sentence == "`local_sgd(30)` was counted to send 0.3 bytes a parameter and step, and is priced with 0.233"
