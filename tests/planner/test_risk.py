"""What is known of a strategy: rows that were measured in a training like this one, and what its words promise."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laconic import registry
from laconic.errors import LaconicError
from laconic.experiments.student import student_gap
from laconic.planner.guarantee import EXACT
from laconic.planner.risk import (
    DIVERGED,
    TABLE,
    MeasuredRisk,
    Training,
    guarantee_of,
    measured,
    measured_losses,
    of_runs,
    of_table,
    risk_of,
)
from laconic.planner.runs import Run
from laconic.strategy import Strategy

HERE = Training("transformer", "adamw", 8, 10_000_000)
SENTENCE = "diloco(30, lr=0.7)"
LOSSES = {"bsp": (1.00, 1.02, 0.98), SENTENCE: (1.03, 1.04, 1.02), "local(8)": (1.10, 1.00, 1.20)}


def run(sentence: str, seed: int, loss: float | None, **more: Any) -> Run:
    facts: dict[str, Any] = {
        **{"task": "bytes", "rung": "depth", "kind": "transformer", "parameters": 10_678_272, "tensors": 77},
        **{"workers": 8, "optimizer": "adamw", "samples_per_step": 65536, "lr": 0.001, "steps": 3000},
        **{"full_steps": 3000, "purpose": "report", "diverged": loss is None},
    }
    return Run(sentence=sentence, seed=seed, loss=loss, **facts | more)


def rows(**more: Any) -> list[Run]:
    return [run(text, seed, loss, **more) for text, losses in LOSSES.items() for seed, loss in enumerate(losses, 1)]


def risks(*runs: Run) -> list[MeasuredRisk]:
    return list(of_runs(runs))


def test_the_shipped_table_is_what_it_says() -> None:
    table = measured_losses()
    assert len(table) > 150
    for one in table:
        Strategy.parse(one.sentence)
        assert 0 < one.low <= one.loss_ratio <= one.high <= DIVERGED, one
    tuned = [(one.sentence, one.task, one.workers) for one in table if one.rates]
    assert len(tuned) == len(set(tuned))
    for _, task, workers in tuned:
        assert ("bsp", task, workers) in tuned  # which the others are over
    assert {found.training for found in of_table(table)} == {
        Training("classifier", "sgd", workers, 38_282) for workers in (4, 8, 16)
    }
    by_hand = {one.sentence for one in table if not one.rates} - {one.sentence for one in table if one.rates}
    assert by_hand and not by_hand & {found.risk.sentence for found in of_table(table)}


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("sentence,task\nbsp,digits\n")
    with pytest.raises(LaconicError, match=r"rows\.csv is no table of measured losses.*bench/accuracy\.py"):
        measured_losses(tmp_path / "rows.csv")
    with pytest.raises(LaconicError, match="is no table"):
        measured_losses(tmp_path / "none.csv")
    assert TABLE.is_file()


@pytest.mark.parametrize("text", ["bsp", "bsp / none / ps / mgwfbp", "zero_run_length", "[bsp]@node > [bsp]@site"])
def test_the_same_mathematics_has_no_risk(text: str) -> None:
    risk = risk_of(text, HERE, [])
    assert risk is not None and (risk.loss_ratio, risk.low, risk.high) == (1, 1, 1)
    assert guarantee_of(text) == (True, EXACT)


def test_a_risk_is_the_ratio_over_bsp_paired_by_seed_with_its_interval() -> None:
    found = risk_of(SENTENCE, HERE, risks(*rows()))
    expected = student_gap(*(dict(enumerate(LOSSES[text], 1)) for text in (SENTENCE, "bsp")))
    assert found is not None and expected is not None
    assert (found.loss_ratio, found.low, found.high) == tuple(
        1 + x for x in (expected.middle, expected.low, expected.high)
    )
    assert found.low < found.loss_ratio < found.high
    assert (found.task, found.workers, found.parameters) == ("bytes", 8, 10_678_272)


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "convolutional"},
        {"kind": "other"},
        {"optimizer": "sgd"},
        {"optimizer": ""},
        {"workers": 4},
        {"workers": 16},
        {"parameters": 1_000_000},
        {"parameters": 124_000_000},
    ],
)
def test_what_was_measured_in_another_training_says_nothing(other: dict[str, Any]) -> None:
    assert risk_of(SENTENCE, replace(HERE, **other), risks(*rows())) is None


def test_decoupled_weight_decay_makes_no_other_optimizer() -> None:
    assert risk_of(SENTENCE, replace(HERE, optimizer="adam"), risks(*rows())) is not None


@pytest.mark.parametrize(
    "text", ["diloco(8, lr=0.7)", "diloco(30, lr=0.4)", "local(8) / cast_bf16", "bsp / topk(0.1)+ef"]
)
def test_another_setting_is_another_strategy(text: str) -> None:
    assert risk_of(text, HERE, risks(*rows())) is None


def test_a_schedule_is_not_another_strategy() -> None:
    runs = risks(*(run(text, seed, loss) for text, loss in (("bsp", 1.0), ("bsp / qsgd", 1.1)) for seed in (1, 2)))
    assert risk_of("bsp / qsgd / allreduce / mgwfbp", HERE, runs) == risk_of("bsp / qsgd", HERE, runs) is not None


@pytest.mark.parametrize("purpose", ["rate", "short", "fewer"])
def test_only_reported_runs_on_equal_shards_count(purpose: str) -> None:
    assert not risks(*rows(purpose=purpose)) and not risks(*rows(skewed=True))


def test_one_seed_has_no_interval_and_no_answer() -> None:
    assert not risks(*(one for one in rows() if one.seed == 2))


def test_seeds_that_bsp_lacks_are_left_out() -> None:
    kept = [one for one in rows() if one.sentence != "bsp" or one.seed != 3]
    (found,) = [one.risk for one in risks(*kept) if one.risk.sentence == SENTENCE]
    assert found.loss_ratio == pytest.approx((1.03 * 1.04 / (1.00 * 1.02)) ** 0.5)
    assert found.high - found.low > 0.1, "two seeds say little"


def test_a_run_that_diverged_makes_the_ratio_of_its_strategy_the_largest() -> None:
    found = [one if one.seed != 3 or one.sentence != SENTENCE else run(SENTENCE, 3, None) for one in rows()]
    risk = risk_of(SENTENCE, HERE, risks(*found))
    assert risk is not None and risk.loss_ratio == risk.high == DIVERGED


def test_rows_beside_another_optimizer_are_over_that_ones_bsp() -> None:
    muon = [replace(one, optimizer="muon", loss=2 * (one.loss or 0)) for one in rows()]
    both = risks(*rows(), *muon)
    for optimizer in ("adamw", "muon"):
        found = risk_of(SENTENCE, replace(HERE, optimizer=optimizer), both)
        assert found is not None and found.loss_ratio == pytest.approx(1.03, rel=1e-3)


def test_the_model_of_the_nearest_size_counts_and_of_two_tasks_the_worse() -> None:
    small = [replace(one, rung="breadth", parameters=3_000_000, loss=(one.loss or 0) ** 2) for one in rows()]
    both = risks(*rows(), *small)
    sizes = {size: risk_of(SENTENCE, replace(HERE, parameters=size), both) for size in (2_000_000, 30_000_000)}
    assert [risk and risk.parameters for risk in sizes.values()] == [3_000_000, 10_678_272]
    worse = [replace(one, task="bpe", loss=(one.loss or 0) * (1.5 if one.sentence != "bsp" else 1)) for one in rows()]
    found = risk_of(SENTENCE, HERE, risks(*rows(), *worse))
    assert found is not None and (found.task, found.loss_ratio) == ("bpe", pytest.approx(1.5 * 1.03, rel=1e-3))


def test_a_sentence_of_a_package_that_is_not_here_is_passed_over() -> None:
    foreign = [replace(one, sentence="nobodys_rule(3)") for one in rows() if one.sentence == SENTENCE]
    assert {one.risk.sentence for one in risks(*rows(), *foreign)} == set(LOSSES)


def test_every_shipped_row_is_finite_and_of_a_strategy_that_parses() -> None:
    for found in measured():
        assert Strategy.parse(found.risk.sentence)
        assert math.isfinite(found.risk.high) and found.risk.low <= found.risk.loss_ratio <= found.risk.high


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
