"""Two strategies on virtual workers: the numbers are those one computes by hand."""

from __future__ import annotations

import csv
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

import laconic
from laconic.errors import LaconicError
from laconic.experiments.compare import compare
from laconic.experiments.progress import NoProgress
from laconic.experiments.settings import Settings
from laconic.report.table import write

SCRIPT = Path(__file__).parent / "turns.py"
RATE = 1e8
SETTING = """
[network]
levels = [{workers = 1, bandwidth = "100Mbit"}]
[compute]
forward = "10ms"
backward = "20ms"
step = "5ms"
"""
TENSORS = 100 * 500 + 500 + 500 * 10 + 10


@pytest.mark.long
def test_half_the_bytes_take_half_the_exposed_time(tmp_path: Path) -> None:
    network = tmp_path / "net.toml"
    network.write_text(SETTING)
    strategies = ("bsp / sequential", "bsp / cast_bf16 / sequential")
    settings = Settings(
        (str(SCRIPT), "--steps", "30"), strategies, workers=2, engine="virtual", network=str(network), steps=9,
        blocks=2, target=("loss", 1e-9),
    )  # fmt: skip
    made = compare(settings, str(tmp_path / "compared"), NoProgress())
    base, half = made.lines
    assert base.error is half.error is None
    assert base.computing_seconds is not None and base.computing_seconds.middle == pytest.approx(0.035)
    sizes = []
    for line in (base, half):
        assert line.sent_bytes is not None and line.exposed_seconds is not None and line.step_seconds is not None
        sizes.append(line.sent_bytes.value.middle)
        assert line.exposed_seconds.value.middle == pytest.approx(8 * sizes[-1] / RATE, rel=1e-6)
        assert line.step_seconds.value.middle == pytest.approx(0.035 + 8 * sizes[-1] / RATE)
        assert line.seconds_to_target is None, "this loss is never reached"
    assert sizes[0] == pytest.approx(4 * TENSORS, rel=1e-3), "a ring of two sends every byte once"
    assert sizes[1] == pytest.approx(2 * TENSORS, rel=1e-3)
    assert made.regime == pytest.approx(8 * sizes[0] / RATE / 0.035)
    assert [block["steps"] for block in _blocks(made.folder, strategies[0])] == [3, 3, 3]
    text = write(made)
    assert "virtual, over" in text and "not reached" in text
    rows = list(csv.DictReader((made.folder / "table.csv").open()))
    assert float(rows[1]["sent_bytes_per_step_ratio"]) == pytest.approx(0.5, rel=1e-3)
    assert json.loads((made.folder / "compare.json").read_text())["settings"]["workers"] == 2


@pytest.mark.long
def test_a_rule_that_seldom_exchanges_is_measured_over_whole_periods(tmp_path: Path) -> None:
    strategies = ("local(4)", "local(16)")
    made = laconic.compare(
        str(SCRIPT), "--steps", "30", strategies=strategies, workers=2, engine="virtual", network="100Mbit", steps=22,
        target="acurracy=0.9", folder=str(tmp_path / "compared"),
    )  # fmt: skip
    fourth, sixteenth = made.rows
    assert fourth.sent_bytes is not None and fourth.step_seconds is not None
    assert fourth.sent_bytes.value.middle == pytest.approx(TENSORS, rel=1e-3), "four bytes each, every fourth step"
    assert fourth.step_seconds.value.middle == pytest.approx(8 * TENSORS / RATE, rel=0.02)
    assert sixteenth.step_seconds is sixteenth.sent_bytes is None, "not 0 ms"
    text = str(made)
    assert text == (made.folder / "table.txt").read_text() and not made.failed
    assert "`local(16)` was not timed: a block of it is 16 steps, and a run needs 32" in text
    assert "acurracy was NEVER LOGGED by the script; it logs begin, ready, loss" in text
    first, second = made.to_dicts()
    assert first["strategy"] == "local(4)" and first["step_seconds"] == fourth.step_seconds.value.middle
    assert second["step_seconds"] is None and second["error"] is None
    if find_spec("pandas") is None:
        with pytest.raises(LaconicError, match="pip install pandas"):
            made.to_dataframe()
    else:
        assert list(made.to_dataframe()["strategy"]) == list(strategies)


@pytest.mark.long
def test_a_script_that_never_steps_fails_by_name(tmp_path: Path) -> None:
    settings = Settings((str(SCRIPT), "--steps", "0"), ("bsp",), workers=2, engine="virtual")
    made = compare(settings, str(tmp_path / "compared"), NoProgress())
    assert made.failed
    assert "took no optimizer step" in str(made.lines[0].error)
    assert "FAILED  bsp: the script took no optimizer step" in write(made)


def _blocks(folder: Path, name: str) -> list[dict[str, object]]:
    found = [json.loads(line) for line in (folder / "blocks.jsonl").read_text().splitlines()]
    return [block for block in found if block["row"] == name]
