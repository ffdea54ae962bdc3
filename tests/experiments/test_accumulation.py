"""The line that every claim for a local method must stand beside: accumulation, `bsp` and one worker, equally tuned."""

from __future__ import annotations

from pathlib import Path

import pytest

from laconic.experiments.compare import compare
from laconic.experiments.progress import NoProgress
from laconic.experiments.settings import Settings, Tuning
from laconic.report.table import write

SCRIPT = Path(__file__).parent / "regression.py"
ROWS = ("bsp", "local(8)", "grad_accumulation(8)", "one_shot")
"""`one_shot` without a `finish` is one worker that trains alone, in the eyes of the rank that logs."""


@pytest.mark.long
@pytest.mark.technique("grad_accumulation", check=3)
def test_local_steps_stand_beside_their_rivals(tmp_path: Path) -> None:
    network = tmp_path / "net.toml"
    network.write_text('[network]\nlevels = [{workers = 1, bandwidth = "1Mbit"}]\n[compute]\nforward = "1ms"\n')
    tuning = Tuning(0.02, choosing_seeds=(0,), reporting_seeds=(2, 3, 4), rivals=False)
    settings = Settings(
        (str(SCRIPT),), ROWS, workers=4, engine="virtual", network=str(network), tuning=tuning, block_steps=8
    )
    made = compare(settings, str(tmp_path / "compared"), NoProgress())
    assert not made.failed
    assert made.departures == ("no rivals (--no-rivals)", "tuned on 1 seed, not 2", "reported on 3 seeds, not 5"), (
        "every row has its best rate inside the grid"
    )
    text = write(made)
    assert "Made by the protocol: tuned on seeds 0, reported on seeds 2, 3, 4" in text
    for line, row in zip(made.lines, ROWS, strict=True):
        assert line.name.startswith(f"{row} at ") and line.name in text
        assert line.runs == 3
        assert line.final["loss"].value.low < line.final["loss"].value.high, "the spread over seeds"
    bsp, local, accumulated, alone = (
        line.sent_bytes.value.middle for line in made.lines if line.sent_bytes is not None
    )
    assert alone == 0 and bsp == pytest.approx(8 * accumulated)
    assert local == pytest.approx(accumulated, rel=0.06), (
        "a model of twenty numbers, and one more that goes with gradients"
    )
