"""The map on made-up trainings: where something pays, where nothing does, and on what each figure rests."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.errors import LaconicError
from laconic.frontier.clock import Clock, Traffic
from laconic.frontier.map import FASTEST, SLOWEST, Map, bandwidths, contenders, draw
from laconic.frontier.shapes import SIZES, Shape, read_size, write_size
from laconic.frontier.tables import FrontierError, tables
from laconic.planner.runs import Run
from laconic.strategy import Strategy
from tests.frontier.rows import SLOPE, ladder

DILOCO, SPARSE = "diloco(30)", "diloco(30) / chunk_topk(k=32)+two_bit+ef"
GAPS = {DILOCO: 0.01, SPARSE: 0.015, "bsp / power_sgd(4)+ef": 0.02, "bsp / cast_bf16": 0.0}
RATES = (50e6, 1e9, 20e9, 400e9)


def mapped(runs: tuple[Run, ...] | list[Run], sizes: tuple[float, ...] = (10e6, 1e9), rates=RATES) -> Map:  # type: ignore[no-untyped-def]
    return draw(contenders(tables(runs), "bytes", 8), "bytes", 8, rates, sizes)


@cache
def usual() -> Map:
    return mapped(ladder(GAPS, noise=0.0005, rungs=("breadth", "depth"), shrinks=0.8))


def test_the_map_reaches_from_slow_to_fast_networks_and_small_to_large_models() -> None:
    assert bandwidths()[0] == SLOWEST == 50e6 and bandwidths()[-1] == FASTEST == 400e9
    assert list(bandwidths()) == sorted(set(bandwidths())) and SIZES[0] == 3e6 and SIZES[-1] == 70e9


def test_on_a_slow_network_the_fewest_bytes_pay_and_on_a_fast_one_nothing_does() -> None:
    for size in (10e6, 1e9):
        slow, fast = usual().cell(50e6, size), usual().cell(400e9, size)
        assert slow.best is not None and slow.best.method.name == SPARSE and slow.best.speed_up.low > 10
        assert fast.best is None


def test_the_speed_up_is_the_ratio_of_steps_times_the_tokens() -> None:
    for cell in usual().cells:
        for offer in cell.offers:
            expected = cell.ddp.seconds / offer.step.seconds * offer.tokens.middle
            assert offer.speed_up.middle == pytest.approx(expected)
            assert offer.speed_up.low <= offer.speed_up.middle <= offer.speed_up.high
            assert offer.pays == (offer.reaches and offer.speed_up.low > 1)


def test_offers_are_in_the_order_of_the_lower_ends_of_their_speed_ups() -> None:
    for cell in usual().cells:
        gains = [(offer.reaches, not offer.dominated, offer.speed_up.low) for offer in cell.offers]
        assert gains == sorted(gains, reverse=True)


def test_a_method_does_not_win_by_how_little_is_known_of_it() -> None:
    """Two methods that send the same: one is better in the mean, and differs so much by seed that it may be worse."""
    known, vague = DILOCO, "diloco(30, lr=1.0)"
    spread = {1: 0.995, 2: 1.0, 3: 1.005}
    rows = [
        replace(run, loss=run.final * spread[run.seed]) if run.purpose == "report" and run.sentence == vague else run
        for run in ladder({known: 0.015, vague: 0.01}, noise=0.0001)
    ]
    cell = mapped(rows, (3e6,), (50e6,)).cells[0]
    means = {offer.method.name: offer.speed_up.middle for offer in cell.offers}
    assert all(offer.pays for offer in cell.offers) and means[vague] > means[known]
    assert cell.best is not None and cell.best.method.name == known


def test_a_gap_that_was_larger_everywhere_does_not_win_because_it_falls_faster() -> None:
    """Two methods that send the same: the one that was worse at both sizes shrinks by a larger share between them."""
    steady, steep = DILOCO, "diloco(30, lr=1.0)"
    small = ladder({steady: 0.02, steep: 0.04}, noise=0.0001)
    large = [run for run in ladder({steady: 0.015, steep: 0.016}, noise=0.0001, rungs=("breadth", "depth"))
             if run.rung == "depth"]  # fmt: skip
    cell = mapped([*small, *large], (1e9,), (50e6,)).cells[0]
    offers = {offer.method.name: offer for offer in cell.offers}
    assert offers[steep].speed_up.middle > offers[steady].speed_up.middle
    assert offers[steep].dominated and not offers[steady].dominated
    assert cell.best is not None and cell.best.method.name == steady


def test_gaps_are_converted_by_the_curve_of_the_nearest_size() -> None:
    """On the larger rung DDP gains less by more tokens, so that the same gap is worth more of them there."""
    rows = [
        replace(run, loss=run.final * (run.steps / run.full_steps) ** 0.03)
        if run.purpose == "fewer" and run.rung == "depth"
        else run
        for run in ladder({DILOCO: 0.015}, rungs=("breadth", "depth"))
    ]
    small, near, large = (mapped(rows, (size,), (1e9,)).cells[0].offers[0] for size in (3e6, 5e6, 10e6))
    assert small.tokens.middle == pytest.approx(1.015 ** (-1 / 0.06), rel=0.02)
    assert near.tokens.middle == pytest.approx(small.tokens.middle)
    assert large.tokens.middle == pytest.approx(1.015 ** (-1 / 0.03), rel=0.02)


def test_where_nothing_pays_nothing_pays_on_faster_networks() -> None:
    rates = bandwidths(9)
    found = mapped(ladder(GAPS, noise=0.0005, rungs=("breadth", "depth")), (3e6, 30e6, 1e9, 7e9), rates)
    for size in (3e6, 30e6, 1e9, 7e9):
        pays = [found.cell(rate, size).best is not None for rate in rates]
        assert pays == sorted(pays, reverse=True) and pays[0] and not pays[-1]


def test_a_larger_gap_never_pays_where_a_smaller_one_does_not() -> None:
    before = None
    for gap in (0.0, 0.02, 0.05, 0.15):
        found = mapped(ladder({DILOCO: gap}, noise=0.0005), (10e6,), bandwidths(9))
        paying = {cell.bits_per_second for cell in found.cells if cell.best is not None}
        assert before is None or paying <= before
        before = paying
    assert before is not None and len(before) < 9


def test_wide_intervals_do_not_pay() -> None:
    spread = {1: 0.95, 2: 1.0, 3: 1.05}
    sure = ladder({DILOCO: 0.01}, noise=0.0005)
    unsure = [
        replace(run, loss=run.final * spread[run.seed]) if run.purpose == "report" and run.sentence == DILOCO else run
        for run in sure
    ]
    one, other = (mapped(runs, (10e6,), (8e9,)).cells[0].offers[0] for runs in (sure, unsure))
    assert one.pays and not other.pays
    assert not other.speed_up.low >= one.speed_up.low and one.speed_up.high < other.speed_up.high


def test_sizes_beyond_the_ladder_rest_on_the_trend_or_on_the_last_rung() -> None:
    assert {offer.basis for offer in usual().cell(1e9, 10e6).offers} == {"measured"}
    assert {offer.basis for offer in usual().cell(1e9, 1e9).offers} == {"trend"}
    alone = mapped(ladder(GAPS, noise=0.0005), (3e6, 1e9), (1e9,))
    assert {offer.basis for offer in alone.cells[1].offers} == {"last rung"}
    assert usual().measured_up_to == 10_000_000 and alone.measured_up_to == 3_000_000


def test_what_ends_too_far_from_ddp_never_pays_and_comes_last() -> None:
    """On half of the tokens DDP's loss is 4.2 % higher: beyond that nothing says how many tokens make up for it."""
    gaps = {DILOCO: 0.04, "diloco(100)": 0.045, "diloco(10)": -0.01}
    cell = mapped(ladder(gaps, noise=0.0001), (3e6,), (50e6,)).cells[0]
    found = {offer.method.name: (offer.reaches, offer.pays, offer.speed_up.middle > 1) for offer in cell.offers}
    assert found[DILOCO] == found["diloco(10)"] == (True, True, True)
    assert found["diloco(100)"] == (False, False, True) and cell.offers[-1].method.name == "diloco(100)"


def test_what_ddp_reaches_on_less_than_half_of_its_tokens_is_too_far_however_few_were_tried() -> None:
    """DDP on a tenth of its tokens ends 15 % higher: a gap of 10 % is converted, and still pays nowhere."""
    rows = list(ladder({DILOCO: 0.04, "diloco(100)": 0.1}, noise=0.0001))
    tenths = [run for run in rows if run.purpose == "fewer" and run.share == 0.5]
    rows += [replace(run, steps=150, loss=run.final * (0.1 / 0.5) ** -SLOPE) for run in tenths]
    (table,) = tables(rows)
    tokens = {line.method.name: (line.tokens_measured, line.tokens) for line in table.lines}
    measured, share = tokens["diloco(100)"]
    assert measured and share is not None and share.middle == pytest.approx(1.1 ** (-1 / SLOPE), rel=0.05)
    offers = {offer.method.name: offer for offer in mapped(rows, (3e6,), (50e6,)).cells[0].offers}
    assert offers[DILOCO].pays
    assert not offers["diloco(100)"].reaches and not offers["diloco(100)"].pays


def test_one_seed_is_given_the_widest_interval_of_its_rung() -> None:
    """Not its own from another rung, where it happened to be narrow."""
    both = ladder({DILOCO: 0.02, SPARSE: 0.02}, rungs=("breadth", "depth"))
    spread = {1: 0.99, 2: 1.0, 3: 1.01}
    rows = []
    for run in both:
        if run.rung == "depth" and run.purpose == "report" and run.sentence == DILOCO:
            run = replace(run, loss=run.final * spread[run.seed])
        if not (run.rung == "depth" and run.sentence == SPARSE and run.purpose == "report" and run.seed > 1):
            rows.append(run)
    halves = {one.method.name: one.trend.rungs[-1].half for one in contenders(tables(rows), "bytes", 8)}
    assert halves[SPARSE] == halves[DILOCO] > 0.02


def test_one_seed_borrows_the_interval_of_others_and_pays_nothing_where_there_is_none() -> None:
    three = ladder(GAPS, noise=0.0005)
    one = [run for run in ladder(GAPS, rungs=("breadth", "depth")) if run.rung == "depth" and run.seed in (0, 1)]
    borrowed = mapped([*three, *one], (10e6,), (50e6,)).cells[0]
    assert borrowed.best is not None
    single = mapped(ladder(GAPS, seeds=(1,)), (10e6,), (50e6,)).cells[0]
    assert single.best is None and all(math.isnan(offer.speed_up.low) for offer in single.offers)
    assert single.offers[0].speed_up.middle > 10


def test_ddp_itself_skewed_shards_and_single_workers_do_not_contend() -> None:
    skewed = [replace(run, skewed=True) for run in ladder({"diloco(100)": 0.1})]
    alone = [replace(run, workers=1) for run in ladder({"diloco(10)": 0.0}) if run.sentence == "diloco(10)"]
    found = contenders(tables([*ladder(GAPS), *skewed, *alone]), "bytes", 8)
    assert {one.method.name for one in found} == {DILOCO, SPARSE, "bsp / power_sgd(4)+ef"}


def test_phases_of_the_same_share_are_one_method_on_all_rungs() -> None:
    small = ladder({f"bsp until step 150, then {DILOCO}": 0.02}, rungs=("breadth",))
    large = [run for run in ladder({f"bsp until step 300, then {DILOCO}": 0.01}, rungs=("breadth", "depth"))
             if run.rung == "depth"]  # fmt: skip
    (found,) = contenders(tables([*small, *large]), "bytes", 8)
    assert [rung.gap for rung in found.trend.rungs] == pytest.approx([0.02, 0.01])
    assert found.name == f"bsp until 10 % of the steps, then {DILOCO}" and found.traffic.steps == 3000
    assert found.method.name == f"bsp until step 300, then {DILOCO}"
    other = [replace(run, sentence=run.sentence.replace("300", "600")) for run in large]
    assert len(contenders(tables([*small, *other]), "bytes", 8)) == 2


def test_what_cannot_be_mapped_is_refused() -> None:
    with pytest.raises(FrontierError, match=r"the task 'bytes' was measured on 4 workers: .*--workers 8"):
        contenders(tables(ladder(GAPS)), "bytes", 4)
    with pytest.raises(FrontierError, match="has no run of bsp on fewer tokens"):
        contenders(tables([run for run in ladder(GAPS) if run.purpose != "fewer"]), "bytes", 8)


# ------------------------------------------------------------------------------------------------ shapes and steps


@pytest.mark.parametrize("size", SIZES)
def test_shapes_have_about_their_size_and_the_ladders_proportions(size: float) -> None:
    shape = Shape(size, 8)
    assert shape.parameters == pytest.approx(size, rel=0.2)
    assert shape.hidden / shape.layers == pytest.approx(64, rel=0.15)


def test_a_worker_of_a_large_model_is_several_gpus() -> None:
    assert [Shape(size, 8).gpus for size in (3e6, 1e9, 70e9)] == [1, 1, 16]
    assert Shape(10e6, 8).tokens_per_step == 65536


def test_micro_batches_before_the_last_hide_no_communication() -> None:
    shape = Shape(7e9, 8)
    model = shape.profile().model
    assert model.forward.median > 3 * model.backward.median  # several micro-batches
    assert model.seconds == pytest.approx(sum((model.forward.median, model.backward.median, model.step.median)))


@settings(max_examples=30, deadline=None)
@given(st.floats(7.7, 11.6), st.floats(0, 1), st.sampled_from([*GAPS, "streaming_diloco(30)", "a word of tomorrow"]))
def test_a_faster_network_is_never_slower(rate: float, more: float, sentence: str) -> None:
    try:
        strategy = Strategy.parse(sentence)
    except LaconicError:
        strategy = None
    traffic = Traffic(1e6, 10_000_000, 3000)
    slow, fast = (_clock().step(strategy, traffic, 10**at).seconds for at in (rate, min(11.6, rate + more)))
    assert fast <= slow * (1 + 1e-9) and fast >= _clock().computing_seconds


@cache
def _clock() -> Clock:
    return Clock(Shape(10e6, 8))


def test_the_bytes_of_a_step_are_those_of_the_planner_or_the_ledgers_scaled() -> None:
    clock, parameters = _clock(), Shape(10e6, 8).parameters
    dense = clock.step(Strategy.parse("bsp"), Traffic(0.0, 1, 3000), 1e9)
    assert dense.priced and dense.sent_bytes == pytest.approx(7 * parameters, rel=0.01)
    assert clock.ddp(1e9).sent_bytes == pytest.approx(3.5 * parameters, rel=0.01)
    rare = clock.step(Strategy.parse(DILOCO), Traffic(0.0, 1, 3000), 1e9)
    assert rare.sent_bytes == pytest.approx(dense.sent_bytes / 30)
    other = clock.step(None, Traffic(5e6, 5_000_000, 3000), 1e9)
    assert not other.priced and other.sent_bytes == pytest.approx(parameters)


def test_phases_count_by_their_share_of_the_steps() -> None:
    clock, traffic = _clock(), Traffic(0.0, 1, 1000)
    first, second, both = (
        clock.step(Strategy.parse(text), traffic, 1e9).seconds
        for text in ("bsp", DILOCO, f"bsp until step 250, then {DILOCO}")
    )
    assert both == pytest.approx(0.25 * first + 0.75 * second)


@pytest.mark.parametrize(("text", "size"), [("3m", 3e6), ("1b", 1e9), ("7e9", 7e9), (" 30M ", 30e6), ("70B", 70e9)])
def test_sizes_are_read_and_written(text: str, size: float) -> None:
    assert read_size(text) == pytest.approx(size)


def test_sizes_that_are_none_are_refused() -> None:
    assert [write_size(size) for size in (3e6, 1e9, 70e9)] == ["3 M", "1 B", "70 B"]
    for text in ("many", "", "b"):
        with pytest.raises(FrontierError, match="is no size of a model"):
            read_size(text)
    with pytest.raises(FrontierError, match="outside the map, which reaches from 3 M to 70 B"):
        read_size("1k")
