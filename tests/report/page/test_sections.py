"""What the pictures are made of: bars, curves, lanes, layers, pairs."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.experiments.measure import Line, Quantity
from laconic.experiments.outcome import Logged
from laconic.experiments.statistics import Spread
from laconic.report.page import breakdown, curves, layers, timeline
from laconic.report.page.collect import collect
from laconic.report.page.predicted import canonical, pairs
from laconic.runtime.timeline import Span, Timeline
from tests.report.page import samples
from tests.report.page.reading import parsed, saved

# ------------------------------------------------------------------------------------------------ bars


def _flat(value: float) -> Spread:
    return Spread(value, value, value)


@pytest.mark.parametrize(
    ("waited", "parts"),
    [
        (4.0, {"computing": 16.0, "coding": 6.0, "exposed": 4.0}),
        (99.0, {"computing": 16.0, "coding": 0.0, "exposed": 10.0}),
        (None, {"computing": 16.0, "beyond": 10.0}),
    ],
)
def test_a_rows_parts_are_its_step(waited: float | None, parts: dict[str, float]) -> None:
    step = Quantity(_flat(26.0), Spread(0.5, 0.4, 0.6))
    line = Line("a", step, _flat(16.0), waited_seconds=None if waited is None else _flat(waited))
    bar = breakdown.of_line(line)
    assert bar is not None
    assert bar.parts == parts
    assert bar.seconds == 26.0
    assert bar.aside == "2.00× the baseline's speed"


def test_a_row_that_was_not_timed_has_no_bar() -> None:
    assert breakdown.of_line(Line("failed", error="exit code 1")) is None
    assert breakdown.of_line(Line("nobody computed alone", Quantity(_flat(26.0)))) is None


def test_a_plans_bars_are_its_options_and_the_baseline() -> None:
    bars = breakdown.of_plan(samples.advice(samples.option("local(4)", 0.004, 0.001)))
    assert [bar.name for bar in bars] == ["local(4)", "bsp / cast_bf16"]
    assert bars[0].parts == {"computing": 0.016, "coding": 0.001, "exposed": 0.004}
    assert bars[1].aside == "the baseline"


def test_a_timelines_bars_leave_the_first_step_out() -> None:
    made = samples.timeline()
    made.add(0, "waiting", "broadcast", -5.0, 0.0, step=0)
    bars = breakdown.of_timeline(made)
    assert [bar.name for bar in bars] == ["worker 0", "worker 1"]
    assert all(bar.parts == pytest.approx({"computing": 0.016, "exposed": 0.004}) for bar in bars)


def test_bars_are_as_long_as_their_parts() -> None:
    bars = [breakdown.Bar("a", {"computing": 2.0, "exposed": 6.0}), breakdown.Bar("b", {"computing": 4.0})]
    page = parsed(breakdown.block(bars, "Steps"))
    wide = page.all("div", "wide")[0]
    widths = [
        float(r.attributes["width"] or 0) for kind in ("p-computing", "p-exposed") for r in wide.all("rect", kind)
    ]
    assert [width / widths[0] for width in widths] == pytest.approx([1, 2, 3], rel=1e-2)
    assert "a: 8.00 s (computing 2.00 s, exposed communication 6.00 s)" in (
        wide.all("svg")[0].attributes["aria-label"] or ""
    )


# ------------------------------------------------------------------------------------------------ curves


def _logged(*values: float, step_seconds: float = 1.0) -> list[Logged]:
    return [Logged(k, k * step_seconds, None, {"loss": value}) for k, value in enumerate(values, 1)]


def test_a_curve_is_the_mean_over_seeds_with_their_range() -> None:
    seeds = [_logged(3.0, 1.0), _logged(5.0, 2.0, step_seconds=3.0), _logged(4.0, math.nan, step_seconds=2.0)]
    (curve,) = curves.curves([("a", seeds)], lambda at: at.seconds, "loss")
    assert curve.points == ((2.0, 4.0, 3.0, 5.0), (4.0, 1.5, 1.0, 2.0))
    assert curve.seeds == 3


def test_what_is_saved_is_the_mean_and_the_range_over_seeds() -> None:
    page = parsed(curves.section([("a", [_logged(3.0), _logged(5.0)])], "a.csv"))
    assert saved(page.all("a", "save")[0]).splitlines() == [
        "row,runs,step,seconds,total_bytes,loss,loss_low,loss_high",
        "a,2,1,1.0,,4.0,3.0,5.0",
    ]


def test_what_nobody_counted_is_not_drawn() -> None:
    assert curves.curves([("a", [_logged(1.0)])], lambda at: at.total_bytes, "loss") == []
    page = parsed(curves.section([("a", [_logged(1.0, 0.5)])], "a.csv"))
    assert [caption.text for caption in page.all("figcaption")] == ["loss against time"]
    assert saved(page.all("a", "save")[0]).splitlines() == [
        "row,runs,step,seconds,total_bytes,loss",
        "a,1,1,1.0,,1.0",
        "a,1,2,2.0,,0.5",
    ]
    assert curves.section([("a", [[]])], "a.csv") == ""


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=900))
@settings(max_examples=60, deadline=None)
def test_a_long_line_keeps_its_ends_and_extremes(values: list[float]) -> None:
    points = [(float(k), value, value, value) for k, value in enumerate(values)]
    kept = curves.thinned(points, 40)
    assert len(kept) <= 40
    assert all(a[0] < b[0] for a, b in pairwise(kept)) and set(kept) <= set(points)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert min(p[1] for p in kept) == min(values)
    assert max(p[1] for p in kept) == max(values)


def test_losses_come_first_and_few_metrics_are_drawn() -> None:
    at = Logged(1, 1.0, None, {"batch": 8.0, "accuracy": 0.5, "f1": 0.5, "val_loss": 1.0, "loss": 1.0})
    assert curves.metrics_of([("a", [[at]])]) == (["val_loss", "loss", "accuracy"], 2)


# ------------------------------------------------------------------------------------------------ lanes


def test_a_short_timeline_is_drawn_whole() -> None:
    shown = timeline.window(samples.timeline())
    assert shown.whole
    assert len(shown.spans) == 50
    assert parsed(timeline.block(samples.timeline())).all("p", "note")[0].text == "All 50 spans of 2 workers."


def test_a_long_timeline_is_cut_and_says_so() -> None:
    shown = timeline.window(samples.timeline(workers=12, steps=60))
    assert len(shown.spans) == timeline.SPANS
    assert shown.workers == tuple(range(8))
    assert shown.begin_seconds == pytest.approx(0.04)  # the third step
    page = parsed(timeline.block(samples.timeline(workers=12, steps=60)))
    assert "1,500 of 3,600 spans" in page.all("p", "note")[0].text
    assert "of 8 of 12 workers" in page.all("p", "note")[0].text
    assert len(page.all("svg", "lanes")[0].all("rect")) == timeline.SPANS


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 3)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_no_two_spans_of_a_lane_overlap_while_lanes_last(times: list[tuple[float, float]]) -> None:
    spans = sorted((Span(0, "communication", "m", b, b + d) for b, d in times), key=lambda s: s.begin_seconds)
    lanes = timeline.lanes(spans, most=len(spans) + 1)
    assert sum(map(len, lanes)) == len(spans)
    assert all(a.end_seconds <= b.begin_seconds for lane in lanes for a, b in pairwise(lane))
    assert len(timeline.lanes(spans, most=2)) <= 2


def test_spans_lie_where_their_times_are() -> None:
    made = Timeline()
    made.add(0, "compute", "forward", 1.0, 2.0, part="forward")
    made.add(0, "communication", "send 8 B", 3.0, 5.0)
    rects = parsed(timeline.block(made)).all("svg", "lanes")[0].all("rect")
    assert [(r.attributes["x"], r.attributes["width"]) for r in rects] == [
        ("0.0000%", "25.0000%"),
        ("50.0000%", "50.0000%"),
    ]
    assert rects[1].text == "send 8 B, 2.00 s from 3.00 s on"


# ------------------------------------------------------------------------------------------------ layers


def test_only_the_largest_layers_are_drawn_and_all_are_tabled() -> None:
    page = parsed(layers.block(samples.advice(layers=60).layers, "plan"))
    assert "the 48 largest of 60 tensors" in page.all("figcaption")[0].text
    assert len(page.all("div", "wide")[0].all("rect", "p-exposed")) == 48
    assert len(page.all("tbody")[0].all("tr")) == 60
    assert saved(page.all("a", "save")[0]).splitlines()[2] == "block.1.weight,8000,0.001,0.001,0.002,0.003"
    assert layers.block((), "plan") == ""


# ------------------------------------------------------------------------------------------------ pairs


def test_strategies_are_matched_by_what_they_mean(tmp_path: Path) -> None:
    options = (samples.option("local(4) / none / allreduce", 0.006), samples.option("bsp / topk(0.5)+ef", 0.001))
    plan = samples.write_plan(tmp_path / "plan.json", samples.advice(*options))
    found = pairs(collect([plan, samples.write_comparison(tmp_path / "c")]))
    assert [pair.option.strategy for pair in found] == ["local(4) / none / allreduce", "bsp / cast_bf16"]
    assert found[0].measured.middle == pytest.approx(0.02424)  # 24 ms, less in some blocks
    assert found[0].error == pytest.approx(0.022 / 0.02424 - 1)
    assert not found[0].inside  # of 19.8 to 24.2 ms


def test_a_text_that_is_no_strategy_is_only_itself() -> None:
    assert canonical(samples.HOSTILE) == samples.HOSTILE
    assert canonical("torch:ddp16( )") == canonical("torch:ddp16")
    assert canonical("local(4)") == canonical("local(period = 4) / none")
