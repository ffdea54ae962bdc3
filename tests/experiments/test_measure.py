"""From workers' records to the numbers of a table, and to its text."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laconic.experiments.compare import Comparison
from laconic.experiments.measure import RowOutcomes, line_of
from laconic.experiments.outcome import RunOutcome, RunRecords
from laconic.experiments.settings import Settings, Tuning
from laconic.reading import Source
from laconic.report.table import as_csv, as_text, write

BLOCK = 4
STEPS = 5 * BLOCK + 2


def records(step_seconds: float, sent: float, losses: dict[int, float] | None = None) -> list[dict[str, Any]]:
    """A worker that takes as long for every step, except in the first block, and logs a loss after some."""
    found: list[dict[str, Any]] = []
    seconds = 0.0
    for step in range(1, STEPS + 1):
        seconds += step_seconds * (10 if step <= BLOCK else 1)
        now = {"step": step, "seconds": seconds, "sent_bytes": sent * step, "received_bytes": sent * step}
        found.append(now)
        if losses and step in losses:
            found.append({**now, "seconds": seconds + 0.001, "values": {"loss": losses[step]}})
    return found


def outcome(step_seconds: float, sent: float = 0.0, losses: dict[int, float] | None = None, **more: Any) -> RunOutcome:
    slower = records(step_seconds, sent, losses)
    faster = records(step_seconds / 2, sent)
    return RunRecords({0: slower, 1: faster}, **more).outcome(BLOCK, uncounted=False)


def test_a_block_is_as_slow_as_its_slowest_worker_and_the_last_may_be_short() -> None:
    blocks = outcome(0.5, 100.0).blocks
    assert [block.steps for block in blocks] == [4, 4, 4, 4, 4, 2]
    assert [block.whole for block in blocks] == [True] * 5 + [False]
    assert [block.step_seconds for block in blocks] == pytest.approx([5.0] + [0.5] * 5)
    assert [block.sent_bytes for block in blocks] == pytest.approx([400.0] * 5 + [200.0])
    assert sorted(outcome(0.5).timed()) == [1, 2, 3, 4]


def test_bytes_of_the_interface_take_precedence_and_divide_over_the_steps_of_a_block() -> None:
    made = outcome(0.5, 100.0, {6: 1.0}, wire_bytes=[(1000.0, 500.0)] * 6)
    assert made.counter == "interface"
    assert made.blocks[1].sent_bytes == 1000.0
    assert made.logged[0].total_bytes == pytest.approx(1500 * 1.5)


def test_bytes_that_nobody_counts_are_missing() -> None:
    made = RunRecords({0: records(0.5, 0.0, {4: 1.0})}).outcome(BLOCK, uncounted=True)
    assert made.counter is None
    assert made.blocks[0].sent_bytes is None
    assert made.logged[0].total_bytes is None


def test_a_target_is_reached_from_where_the_metric_began() -> None:
    made = outcome(0.5, 100.0, {4: 3.0, 8: 2.0, 12: 1.0})
    at = made.reach("loss", 2.5)
    assert at is not None
    assert (at.step, at.total_bytes) == (8, 1600.0)
    assert made.reach("loss", 0.5) is None
    assert made.reach("accuracy", 0.5) is None
    assert made.final("loss") == 1.0


def test_a_target_met_from_the_first_value_on_is_reached_and_one_that_is_left_is_not_reached_by_leaving() -> None:
    made = outcome(0.5, 100.0, {4: 0.4, 8: 0.3, 12: 9.0})
    at = made.reach("loss", 0.5)
    assert at is not None and at.step == 4
    assert made.reach("loss", 0.2) is None, "a loss that climbs past its target has not reached it"
    rising = made.reach("loss", 5.0, falls=False)
    assert rising is not None and rising.step == 12, "the tuning knows better"


def test_a_row_that_never_stepped_says_so() -> None:
    now = {"step": 0, "seconds": 0.1, "sent_bytes": 0, "received_bytes": 0, "values": {"loss": 1.0}}
    stepping = records(0.5, 0.0)
    assert RunRecords({0: stepping, 1: stepping}).nothing_to_measure() is None
    assert "never called laconic.distribute()" in str(RunRecords().nothing_to_measure())
    assert "the script took no optimizer step" in str(RunRecords({0: [now], 1: []}).nothing_to_measure())
    assert "rank 1 took no optimizer step" in str(RunRecords({0: stepping, 1: [now]}).nothing_to_measure())


def test_exposed_time_that_is_noise_divides_nothing(settings: Settings, tmp_path: Path) -> None:
    for base in (outcome(0.1005), outcome(0.09)):
        own, alone = outcome(0.2), outcome(0.1)
        line = line_of("local", {-1: RowOutcomes(own, base, alone)}, lambda seed: None)
        assert line.exposed_seconds is not None and line.exposed_seconds.value.middle == pytest.approx(0.1)
        assert line.exposed_seconds.ratio is None
        (row,) = csv.DictReader(io.StringIO(as_csv([line])))
        assert row["exposed_seconds_ratio"] == "" and float(row["step_seconds_ratio"]) > 1


def test_bytes_are_a_mean_since_not_every_block_sends() -> None:
    """A rule that sends by need sends nothing in half of the blocks: a median would say that it sends nothing."""
    sending = [(0.0, 0.0), (0.0, 0.0), (4000.0, 4000.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)]
    own, base = outcome(0.1, wire_bytes=sending), outcome(0.1, wire_bytes=[(4000.0, 4000.0)] * 6)
    line = line_of("lag", {-1: RowOutcomes(own, base, outcome(0.1))}, lambda seed: None)
    assert line.sent_bytes is not None and line.sent_bytes.ratio is not None
    assert line.sent_bytes.value.middle == pytest.approx(4000 / 16)
    assert line.sent_bytes.ratio.middle == pytest.approx(1 / 4)


def test_nothing_is_divided_by_a_baseline_that_failed(settings: Settings, tmp_path: Path) -> None:
    base = replace(outcome(0.3, 2e6, {8: 2.0}), error="exit code 1: rank 1 was lost")
    own, alone = outcome(0.2, 1e6, {8: 2.0, 12: 1.5}), outcome(0.1)
    lines = tuple(
        line_of(name, {-1: RowOutcomes(one, base, alone)}, lambda seed: settings.target)
        for name, one in (("bsp", base), ("local", own))
    )
    for quantity in (lines[1].step_seconds, lines[1].exposed_seconds, lines[1].sent_bytes, lines[1].final["loss"]):
        assert quantity is not None and quantity.ratio is None
    assert lines[1].seconds_to_target is not None and lines[1].seconds_to_target.ratio is None
    text = as_text(Comparison(settings, tmp_path, lines, settings.target, ()))
    assert "Baseline: bsp, WHICH FAILED: there are no ratios." in text
    assert "computation of the baseline = – (it was not timed)" in text
    assert "0.667" not in text
    unmeasured = line_of("local", {-1: RowOutcomes(own, own, replace(alone, error="lost"))}, lambda seed: None)
    assert unmeasured.exposed_seconds is None, "nor is anything subtracted that failed"


def test_computing_that_takes_no_time_has_no_regime(settings: Settings, tmp_path: Path) -> None:
    silent, alone = outcome(0.0), outcome(1e-13)
    line = line_of("one_shot", {-1: RowOutcomes(silent, silent, alone)}, lambda seed: None)
    made = Comparison(settings, tmp_path, (line,), None, ())
    assert made.regime is None, "not -1.00"
    assert "– (computing takes no time)" in as_text(made)


def test_a_target_on_a_metric_that_nobody_logs_is_named(settings: Settings, tmp_path: Path) -> None:
    target = ("accurcy", 0.9)
    base, alone = outcome(0.3, 2e6, {8: 2.0}), outcome(0.1)
    line = line_of("bsp", {-1: RowOutcomes(base, base, alone)}, lambda seed: target)
    text = as_text(Comparison(settings, tmp_path, (line,), target, ()))
    assert "not reached" not in text
    assert "never logged" in next(row for row in text.splitlines() if row.startswith("bsp"))
    assert "accurcy was NEVER LOGGED by the script; it logs loss: name one of these with --target" in text
    silent = line_of("bsp", {-1: RowOutcomes(outcome(0.3), base, alone)}, lambda seed: target)
    assert "it logs nothing, or report it with laconic.log(accurcy=…)" in as_text(
        Comparison(settings, tmp_path, (silent,), target, ())
    )


def test_outcomes_survive_json() -> None:
    import json
    from dataclasses import asdict

    made = outcome(0.5, 100.0, {4: 3.0})
    read = Source("a session", "outcome", "run it again").value(json.loads(json.dumps(asdict(made))), RunOutcome)
    assert read == made


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    return Settings(("train.py",), ("bsp", "bsp / cast_bf16"), target=("loss", 1.5), quick=True)


def compared(settings: Settings, folder: Path, departures: tuple[str, ...] = ()) -> Comparison:
    base = outcome(0.3, 2e6, {8: 2.0, 16: 1.0})
    half = outcome(0.2, 1e6, {8: 2.0, 12: 1.5, 16: 1.1})
    alone = outcome(0.1)
    broken = RunOutcome(error="exit code 1: rank 1 was lost")
    lines = tuple(
        line_of(name, {-1: RowOutcomes(own, base, alone)}, lambda seed: settings.target)
        for name, own in (("bsp", base), ("bsp / cast_bf16", half), ("torch:ddp", broken))
    )
    return Comparison(settings, folder, lines, settings.target, departures)


def test_every_number_has_its_ratio_to_the_first_row(settings: Settings, tmp_path: Path) -> None:
    made = compared(settings, tmp_path)
    base, half, broken = made.lines
    assert base.step_seconds is not None and half.step_seconds is not None and half.exposed_seconds is not None
    assert base.step_seconds.value.middle == pytest.approx(0.3)
    assert half.step_seconds.ratio is not None and half.exposed_seconds.ratio is not None
    assert half.step_seconds.ratio.middle == pytest.approx(2 / 3)
    assert half.exposed_seconds.value.middle == pytest.approx(0.1)
    assert half.exposed_seconds.ratio.middle == pytest.approx(0.5)
    assert half.sent_bytes is not None and half.sent_bytes.ratio is not None
    assert half.sent_bytes.value.middle == pytest.approx(1e6)
    assert half.sent_bytes.ratio.middle == pytest.approx(0.5)
    assert half.seconds_to_target is not None and half.bytes_to_target is not None
    assert half.seconds_to_target.value.middle == pytest.approx(0.2 * (40 + 8) + 0.001)
    assert half.bytes_to_target.value.middle == pytest.approx(24e6)
    assert made.regime == pytest.approx(2.0)
    assert made.failed and broken.error is not None and broken.step_seconds is None


def test_the_text_says_how_it_was_made_and_what_failed(settings: Settings, tmp_path: Path) -> None:
    text = write(compared(settings, tmp_path, ("no tuning",)))
    assert text.startswith("NOT MADE BY THE PROTOCOL (--quick): no tuning.")
    assert "r = exposed communication / computation of the baseline = 2.00" in text
    assert "FAILED  torch:ddp: exit code 1: rank 1 was lost" in text
    row = next(line for line in text.splitlines() if line.startswith("bsp / cast_bf16"))
    assert row.split()[3:5] == ["200", "[200–200]"]
    assert "0.667" in row and "0.500" in row
    assert (tmp_path / "table.txt").read_text() == text
    table = [line for line in text.splitlines() if line.startswith(("strategy", "---", "bsp", "torch"))]
    assert len({len(line) for line in table}) == 1, "columns are aligned"


def test_the_csv_holds_every_number_in_si_units(settings: Settings, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(compared(settings, tmp_path).lines))))
    assert [row["strategy"] for row in rows] == ["bsp", "bsp / cast_bf16", "torch:ddp"]
    assert float(rows[1]["step_seconds"]) == pytest.approx(0.2)
    assert float(rows[1]["sent_bytes_per_step_ratio"]) == pytest.approx(0.5)
    assert float(rows[0]["final_loss"]) == pytest.approx(1.0)
    assert rows[1]["sent_bytes_per_step_ratio_low"] == rows[1]["final_loss_ratio_high"] == "", (
        "one run spreads over none"
    )
    assert float(rows[1]["step_seconds_ratio_low"]) == pytest.approx(2 / 3), "over blocks"
    assert rows[2]["step_seconds"] == "" and rows[2]["error"]


def test_over_seeds_ratios_have_intervals_and_a_missed_target_is_counted(settings: Settings, tmp_path: Path) -> None:
    trios = {}
    for seed, factor in ((2, 1.0), (3, 1.2), (4, 0.8)):
        base = outcome(0.3 * factor, 2e6, {8: 2.0, 16: 1.0})
        own = outcome(0.15 * factor, 1e6, {8: 2.0, 16: 1.0 if seed != 4 else 1.7})
        trios[seed] = RowOutcomes(own, base, outcome(0.1))
    line = line_of("local", trios, lambda seed: ("loss", 1.5))
    assert line.step_seconds is not None and line.step_seconds.ratio is not None
    assert line.step_seconds.ratio.middle == pytest.approx(0.5)
    assert line.step_seconds.ratio.low == pytest.approx(0.5)
    assert (line.reached, line.runs) == (2, 3)
    assert line.seconds_to_target is None
    tuned = Settings(settings.command, settings.strategies, tuning=Tuning(0.1))
    text = as_text(Comparison(tuned, tmp_path, (line,), ("loss", None), ("without torchft:diloco: not installed",)))
    assert text.startswith("Made by the protocol: tuned on seeds 0, 1, reported on seeds 2, 3, 4, 5, 6")
    assert "DEPARTS FROM IT: without torchft:diloco" in text
    assert "2 of 3 reach it" in text
