"""Whatever rows there are, tables are made of them or refused in a sentence."""

from __future__ import annotations

import json
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.frontier.answer import Frontier
from laconic.frontier.map import contenders, draw
from laconic.frontier.orderings import judge
from laconic.frontier.short import short_runs
from laconic.frontier.tables import FrontierError, tables
from laconic.planner.runs import Run
from laconic.report.frontier_json import to_json
from laconic.report.page.frontier import render
from tests.frontier.rows import one

SENTENCES = (
    *("bsp", "bsp / cast_bf16", "diloco(30)", "diloco(10)", "local(30)", "bsp / two_bit", "bsp / two_bit+ef"),
    *("bsp until step 100, then diloco(30)", "{matrix: power_sgd(4)+ef, else: none}", "a word of tomorrow"),
)
RUNS = st.builds(
    one,
    st.sampled_from(SENTENCES),
    rung=st.sampled_from(["breadth", "depth"]),
    parameters=st.sampled_from([3_000_000, 10_000_000]),
    workers=st.sampled_from([1, 8]),
    optimizer=st.sampled_from(["adamw", "muon"]),
    lr=st.sampled_from([1e-3, 2e-3]),
    seed=st.integers(0, 3),
    steps=st.sampled_from([1, 150, 1500]),
    purpose=st.sampled_from(["rate", "report", "fewer", "short"]),
    loss=st.none() | st.floats(1e-6, 1e6),
    skewed=st.booleans(),
    bytes=st.floats(0, 1e15),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(RUNS, min_size=1, max_size=25))
def test_any_rows_are_shown(runs: list[Run]) -> None:
    found = tables(runs)
    cell = None
    with suppress(FrontierError):
        cell = draw(contenders(found, "bytes", 8), "bytes", 8, (1e9,), (30e6,)).cells[0]
    short = tuple((table, each) for table in found for each in short_runs(table))
    whole = Frontier("bytes", 8, 1e9, 30e6, found, judge(found), short, None, cell, "it was not asked for")
    assert json.loads(to_json(whole))["verdict"] == whole.verdict and render(whole)
