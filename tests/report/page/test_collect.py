"""What is read is what was written; what is missing or broken is named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.errors import LaconicError
from laconic.experiments.measure import Line, Quantity
from laconic.experiments.statistics import Spread
from laconic.report import ablation
from laconic.report.page import comparison
from laconic.report.page.collect import collect, read
from laconic.report.page.read_comparison import read_lines
from laconic.report.page.values import Compared, Planned, Run
from laconic.report.table import as_csv
from tests.report.page.samples import advice, timeline, write_comparison, write_plan, write_run

finite = st.floats(-1e12, 1e12)
spreads = st.builds(Spread, finite, finite, finite)
lone_ratios = st.builds(lambda middle: Spread(middle, math.nan, math.nan), finite)
quantities = st.builds(Quantity, spreads, st.none() | spreads | lone_ratios)
maybe = st.none() | quantities
names = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1)
lines = st.builds(
    Line, names, maybe, st.none() | spreads, maybe, maybe, maybe, st.none() | spreads, maybe, maybe, st.integers(0, 5),
    st.integers(1, 5), st.builds(lambda loss, other: {"loss": loss, "high_ratio": other}, quantities, quantities),
    st.sampled_from([None, "ledger", "interface"]), st.integers(0, 99), st.none() | names,
)  # fmt: skip


@pytest.mark.long
@given(st.lists(lines, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_a_table_is_read_as_it_was_written(written: list[Line]) -> None:
    assert repr(read_lines(as_csv(written), "here")) == repr(tuple(written))  # NaN equals NaN in print


def test_a_comparison_brings_its_rows_and_their_curves_by_seed(tmp_path: Path) -> None:
    compared = read(write_comparison(tmp_path / "c", seeds=(2, 10)))
    assert isinstance(compared, Compared)
    assert [line.name for line in compared.lines] == ["bsp", "local(period=4)", "bsp / cast_bf16"]
    assert [[o.logged[0].values["loss"] for o in row] for row in compared.runs] == [[2.02, 2.1]] * 3
    assert [round(row[0].logged[0].seconds, 9) for row in compared.runs] == [0.104, 0.096, 0.088]
    assert compared.made[0].startswith("NOT MADE BY THE PROTOCOL")
    assert compared.legend[0].startswith("time: mean over seeds")
    assert compared.missing == 0


def test_rows_that_ran_in_groups_find_their_own_curves(tmp_path: Path) -> None:
    rows = ("bsp", "a", "b", "c", "bsp")
    compared = read(write_comparison(tmp_path / "c", strategies=rows, rows_at_once=3))
    assert isinstance(compared, Compared)
    assert [round(runs[0].logged[0].seconds / 4, 9) for runs in compared.runs] == [0.026, 0.024, 0.022, 0.02, 0.018]


def test_an_ablation_is_a_comparison_of_parts(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "c", strategies=("bsp", "local(period=4)"))
    table = read_lines((folder / "table.csv").read_text(), "")
    parts = [("the whole", table[0]), ("without bsp", table[1])]
    (folder / "ablation.csv").write_text(ablation._as_csv(parts, "loss"))
    (folder / "table.csv").unlink()
    compared = read(folder)
    assert isinstance(compared, Compared)
    assert [line.name for line in compared.lines] == ["the whole: bsp", "without bsp: local(period=4)"]
    assert [line.step_seconds for line in compared.lines] == [line.step_seconds for line in table]
    assert [line.final["loss"] for line in compared.lines] == [line.final["loss"] for line in table]
    assert comparison.section(compared, "it").count("<section") == 1


def test_a_row_that_failed_is_there_with_its_error(tmp_path: Path) -> None:
    compared = read(write_comparison(tmp_path / "c", failed="exit code 1"))
    assert isinstance(compared, Compared)
    assert [line.error for line in compared.lines] == [None, None, "exit code 1"]
    assert compared.missing == 2
    assert compared.runs == ((), (), ())


def test_a_run_brings_metrics_timeline_and_the_end_of_its_log(tmp_path: Path) -> None:
    message = [
        {"seconds": 1.0, "loss": 2.0},
        {"seconds": 1.0, "reached": {"loss": 2.5}},
        {"seconds": 2.0, "loss": math.nan},
    ]
    folder = write_run(tmp_path / "r", message, log="\n".join(f"line {k}" for k in range(99)))
    timeline().write(folder / "trace.json")
    run = read(folder)
    assert isinstance(run, Run)
    assert next((at.step, at.seconds, at.values["loss"]) for at in run.logged) == (1, 1.0, 2.0)
    assert len(run.logged) == 2
    assert run.timeline is not None
    assert len(run.timeline.spans) == len(timeline().spans)
    assert run.logs["rank-0"].splitlines() == [f"line {k}" for k in range(69, 99)]


def test_a_life_after_a_restart_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    message = [{"seconds": s, "loss": 1.0} for s in (1.0, 3.0, 0.5, 2.0)]
    run = read(write_run(tmp_path / "r", message))
    assert isinstance(run, Run)
    assert [at.seconds for at in run.logged] == [1.0, 3.0, 3.5, 5.0]


def test_metrics_of_virtual_workers_are_drawn_over_their_virtual_time(tmp_path: Path) -> None:
    run = read(
        write_run(tmp_path / "r", [{"seconds": 9.0, "loss": 1.0}, {"seconds": 99.0, "loss": 1.0}], engine="virtual")
    )
    assert isinstance(run, Run)
    assert [at.seconds for at in run.logged] == [9.0, 99.0]


def test_recorded_steps_bring_virtual_time_and_bytes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", engine="virtual")
    (folder / "steps").mkdir()
    at = {"step": 4, "seconds": 0.5, "sent_bytes": 10, "received_bytes": 20, "waited_seconds": 0.0}
    (folder / "steps" / "rank-0.jsonl").write_text(f"{json.dumps(at)}\n{json.dumps({**at, 'values': {'loss': 1.5}})}\n")
    run = read(folder)
    assert isinstance(run, Run)
    assert [(x.step, x.seconds, x.total_bytes) for x in run.logged] == [(4, 0.5, 30.0)]


def test_a_line_that_was_cut_off_is_left_out_and_a_broken_one_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", [{"seconds": 1.0, "loss": 2.0}] * 2)
    path = folder / "metrics" / "rank-0.jsonl"
    path.write_text(path.read_text() + '{"seconds": 3.0, "lo')
    run = read(folder)
    assert isinstance(run, Run)
    assert len(run.logged) == 2
    path.write_text('{"seconds": 1.0, "loss": 2.0}\n{"seconds": 3.0, "lo\n{"seconds": 4.0, "loss": 1.0}\n')
    with pytest.raises(LaconicError, match=r"rank-0\.jsonl is broken: line 2 is no JSON"):
        read(folder)


def test_inputs_are_told_apart_and_count_once(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / "r"), write_comparison(tmp_path / "c"), write_plan(tmp_path / "plan.json")]
    inputs = collect([*paths, *paths])
    assert (len(inputs.runs), len(inputs.comparisons), len(inputs.plans)) == (1, 1, 1)
    assert read(paths[2]) == Planned(paths[2], advice())


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _of_nothing_yet(folder: Path) -> Path:
    write_run(folder, ())
    record = json.loads((folder / "run.json").read_text())
    del record["result"]
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def _with(folder: Path, name: str, content: str) -> Path:
    (write_comparison if name in ("compare.json", "table.csv", "sessions/seed-0.json") else write_run)(folder)
    (folder / name).write_text(content)
    return folder


def _unfinished(folder: Path) -> Path:
    (write_comparison(folder) / "table.csv").unlink()
    return folder


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path, r"there is no .*thing: give a folder"),
        (_empty, r"thing is no run: it holds neither run\.json"),
        (_of_nothing_yet, r"has not ended and has logged nothing"),
        (lambda path: _with(path, "run.json", "{"), r"run\.json is broken: it is no JSON"),
        (lambda path: _with(path, "run.json", "[]"), r"run\.json is broken: it holds no table"),
        (lambda path: _with(path, "trace.json", "{}"), r"trace\.json is no timeline"),
        (lambda path: _with(path, "metrics/rank-0.jsonl", '{"loss": 1.0}\n'), r"holds no metrics"),
        (lambda path: _with(path, "metrics/rank-0.jsonl", '{"seconds": 1, "loss": "x"}\n'), r"holds no metrics"),
        (lambda path: _with(path, "compare.json", "{}"), r"does not say what was compared"),
        (lambda path: _with(path, "table.csv", "strategy,x\nbsp,1\n"), r"table\.csv is not the table"),
        (lambda path: _with(path, "table.csv", "strategy\n"), r"has no rows"),
        (lambda path: _with(path, "sessions/seed-0.json", '{"groups": [[]]}'), r"is no session of this comparison"),
        (_unfinished, r"the comparison in .* has not ended"),
        (lambda path: path.write_text("{}") and path, r"is no plan"),
        (lambda path: path.write_bytes(b"\xff\xfe") and path, r"is broken: it is no UTF-8"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(tmp_path: Path, make: object, says: str) -> None:
    path = make(tmp_path / "thing")  # type: ignore[operator]
    with pytest.raises(LaconicError, match=says) as caught:
        collect([path])
    assert "\n" not in str(caught.value)


def test_nothing_is_nothing_to_report() -> None:
    with pytest.raises(LaconicError, match="nothing to report on"):
        collect([])
