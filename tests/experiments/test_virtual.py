"""Two strategies on virtual workers: the numbers are those one computes by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

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
def test_a_script_that_never_steps_fails_by_name(tmp_path: Path) -> None:
    settings = Settings((str(SCRIPT), "--steps", "0"), ("bsp",), workers=2, engine="virtual")
    made = compare(settings, str(tmp_path / "compared"), NoProgress())
    assert made.failed
    assert "took no optimizer step" in str(made.lines[0].error)
    assert "FAILED  bsp: the script took no optimizer step" in write(made)


def _blocks(folder: Path, name: str) -> list[dict[str, object]]:
    found = [json.loads(line) for line in (folder / "blocks.jsonl").read_text().splitlines()]
    return [block for block in found if block["row"] == name]
