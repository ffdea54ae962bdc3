"""What is predicted of a strategy's accuracy: the nearest measured row, and what its words promise."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic import registry
from laconic.errors import LaconicError
from laconic.planner.guarantee import EXACT
from laconic.planner.risk import TABLE, MeasuredLoss, guarantee_of, measured_losses, risk_of
from laconic.strategy import Strategy


def row(sentence: str, ratio: float, workers: int = 4, task: str = "digits", rates: int = 3) -> MeasuredLoss:
    return MeasuredLoss(sentence, task, workers, ratio, ratio * 0.9, ratio * 1.1, 10.0, rates)


ROWS = (
    row("bsp / topk(0.1)+ef", 1.1),
    row("bsp / topk(0.01)+ef", 1.5),
    row("bsp / topk(0.01)+ef", 1.8, workers=16),
    row("bsp / topk(0.001)+ef", 3.0),
    row("bsp / topk(0.01)+ef", 1.6, task="chars", rates=0),
    row("local(4)", 1.05),
    row("local(32)", 1.4),
    row("diloco(8) / cast_int8", 1.2),
    row("bsp / cast_int8", 0.98),
    row("bsp until step 20, then frozen_adam / scaled_sign+ef", 1.3),
)


def asked(strategy: str, workers: int = 4) -> float:
    risk = risk_of(strategy, workers, ROWS)
    assert risk is not None
    return risk.loss_ratio


def test_the_shipped_table_is_what_it_says() -> None:
    rows = measured_losses()
    assert len(rows) > 150
    for one in rows:
        Strategy.parse(one.sentence)
        assert 0 < one.low <= one.loss_ratio <= one.high <= 1000, one
    assert {one.workers for one in rows} >= {4, 8}
    tuned = {(one.sentence, one.task, one.workers) for one in rows if one.rates}
    assert len(tuned) == sum(bool(one.rates) for one in rows)  # none twice
    for _, task, workers in tuned:
        assert ("bsp", task, workers) in tuned  # which the others are over
    assert all(one.loss_ratio == 1 for one in rows if one.sentence == "bsp")


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("sentence,task\nbsp,digits\n")
    with pytest.raises(LaconicError, match=r"rows\.csv is no table of measured losses.*bench/accuracy\.py"):
        measured_losses(tmp_path / "rows.csv")
    with pytest.raises(LaconicError, match="is no table"):
        measured_losses(tmp_path / "none.csv")
    assert TABLE.is_file()


@pytest.mark.parametrize("text", ["bsp", "bsp / none / ps / mgwfbp", "zero_run_length", "[bsp]@node > [bsp]@site"])
def test_the_same_mathematics_has_no_risk(text: str) -> None:
    risk = risk_of(text, 64, ROWS)
    assert risk is not None and (risk.loss_ratio, risk.low, risk.high) == (1, 1, 1)
    assert guarantee_of(text) == (True, EXACT)


def test_the_worse_task_is_told() -> None:
    risk = risk_of("bsp / topk(0.01)+ef", 4, ROWS)
    assert risk is not None and (risk.loss_ratio, risk.task) == (1.6, "chars")


def test_the_nearest_number_of_workers_is_taken() -> None:
    risk = risk_of("bsp / topk(0.01)+ef", 100, ROWS)
    assert risk is not None and (risk.loss_ratio, risk.workers) == (1.8, 16)


def test_a_knob_between_two_rows_takes_the_harsher_one() -> None:
    digits = [one for one in ROWS if one.task == "digits"]
    for density, ratio in ((0.05, 1.5), (0.1, 1.1), (0.4, 1.1), (0.003, 3.0), (0.0001, 3.0)):
        risk = risk_of(f"bsp / topk({density})+ef", 4, digits)
        assert risk is not None and risk.loss_ratio == ratio, density
    assert [asked(f"local({period})") for period in (2, 4, 8, 32, 64)] == [1.05, 1.05, 1.4, 1.4, 1.4]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.0005, 1.0), min_size=2, max_size=4), st.integers(1, 256))
def test_sending_less_never_looks_safer(densities: list[float], workers: int) -> None:
    """Where the rows themselves are so: gentler is not worse."""
    found = [risk_of(f"bsp / topk({density:.6f})+ef", workers, ROWS) for density in sorted(densities)]
    ratios = [risk.loss_ratio for risk in found if risk is not None]
    digits = [risk.loss_ratio for risk in found if risk is not None and risk.task == "digits"]
    assert len(ratios) == len(densities) and digits == sorted(digits, reverse=True)


def test_what_was_measured_together_is_not_put_together() -> None:
    assert asked("diloco(8) / cast_int8") == 1.2
    assert asked("[bsp]@node > [diloco(8) / cast_int8]@site") == 1.2


def test_what_was_measured_apart_is_multiplied_and_nothing_makes_up_for_another() -> None:
    risk = risk_of("local(4) / topk(0.1)+ef", 4, ROWS)
    assert risk is not None and risk.loss_ratio == pytest.approx(1.05 * 1.6)  # chars has no density of 0.1
    assert " × " in risk.sentence and risk.high >= risk.loss_ratio >= risk.low
    assert asked("local(4) / cast_int8") == pytest.approx(1.05)
    assert asked("[local(4)]@node > [bsp / cast_int8]@site") == pytest.approx(1.05)


def test_maps_and_phases_are_as_bad_as_their_worst_part() -> None:
    assert asked("{matrix: topk(0.001)+ef, else: cast_int8}") == 3.0
    assert asked("bsp until step 500, then local(32)") == 1.4
    assert asked("bsp until step 900, then frozen_adam / scaled_sign+ef") == 1.3  # whole, whenever it begins


def test_flat_is_as_what_it_carries_where_nothing_else_is_known() -> None:
    assert asked("bsp / flat+topk(0.1)+ef") == asked("bsp / topk(0.1)+ef")


@pytest.mark.parametrize("text", ["asp", "signum", "local(4) / power_sgd(2)+ef", "bsp until step 5, then asp"])
def test_what_was_never_measured_is_unknown(text: str) -> None:
    assert risk_of(text, 4, ROWS) is None


def test_rows_beside_another_optimizer_say_nothing_of_the_users_run() -> None:
    assert all(one.sentence not in ("demo", "dion") for one in measured_losses())
    assert risk_of("demo", 4) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bsp / qsgd", "unbiased"),
        ("bsp / topk(0.01)+ef", r"contraction \(δ = 0.01\) with error feedback"),
        ("bsp / flat+topk(0.01)+ef", r"contraction \(δ = 0.01\) with error feedback"),
        ("bsp / topk(0.01)", "no guarantee declared"),
        ("bsp / power_sgd(2)+ef", "promises no contraction"),
        ("bsp / cast_bf16", "rounded to 16 bits"),
        ("bsp / qsgd+diana", "unbiased.*diana"),
        ("local(8)", "8 local steps"),
        ("diloco(8) / qsgd", "8 local steps, then an outer one.*; unbiased"),
        ("grad_accumulation(4)", "batches 4 times as large"),
        ("ssp(5)", "staleness at most 5"),
        ("asp", "without a bound"),
        ("dpsgd", "in the limit only"),
        ("hogwild", "no locks"),
        ("sign_sgd", "no guarantee declared"),
        ("[bsp]@node > [local(8)]@site", "8 local steps"),
        ("{matrix: topk(0.01)+ef, else: none}", "contraction"),
        ("bsp until step 5, then local(8)", "8 local steps"),
    ],
)
def test_guarantees_are_read_from_the_words(text: str, message: str) -> None:
    lossless, phrase = guarantee_of(text)
    assert not lossless and EXACT not in phrase

    assert re.search(message, phrase), phrase


def test_every_word_and_sentence_that_can_stand_alone_has_an_answer() -> None:
    for entry in registry.entries():
        if entry.axis not in ("sync", "compression", "schedule") or entry.kind == "function":
            continue
        try:
            strategy = Strategy.parse(entry.name)
        except LaconicError:
            continue  # a wrapping word, or one that needs an argument
        lossless, phrase = guarantee_of(strategy)
        assert phrase and lossless == (phrase == EXACT)
        risk = risk_of(strategy, 8)
        assert risk is None or (math.isfinite(risk.high) and risk.low <= risk.high)


def test_a_gentler_pair_does_not_hide_what_its_parts_do() -> None:
    rows = (*ROWS, row("local(4) / topk(0.1)+ef", 1.01))
    risk = risk_of("local(32) / topk(0.1)+ef", 4, rows)
    assert risk is not None and risk.loss_ratio == pytest.approx(1.4 * 1.6)
