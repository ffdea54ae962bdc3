"""`laconic pipeline`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from laconic.cli.app import app
from laconic.errors import LaconicError

SCHEDULES = (
    "gpipe",
    "one_f_one_b",
    "interleaved_1f1b",
    "chimera",
    "pipedream",
    "ooo_backprop_pp",
    "varuna",
    "autopipe",
)


def asked(*arguments: str) -> str:
    found = CliRunner().invoke(app, ["pipeline", *arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def test_schedules_are_listed_and_priced() -> None:
    listed, priced = asked("list"), asked("price", "--microbatches", "8")
    rows = [line.split("|")[1].strip() for line in priced.splitlines() if line.startswith("|")]
    for name in SCHEDULES:
        assert name in listed and name in rows
    assert "aq_sgd" not in listed
    assert rows.index("interleaved_1f1b") < rows.index("one_f_one_b") < rows.index("model_parallel_naive")


def test_what_does_not_fit_is_left_out_unless_it_is_asked_for() -> None:
    assert "chimera" not in asked("price", "--devices", "3")
    with pytest.raises(LaconicError, match="even number"):
        asked("price", "chimera", "--devices", "3")
    with pytest.raises(LaconicError, match="no schedule"):
        asked("show", "aq_sgd")


def test_orders_are_shown() -> None:
    assert "device 1 (holds 1 microbatches at most): F1.0 B1.0 F1.1 B1.1 U1" in asked(
        "show", "one_f_one_b", "--devices", "2", "--microbatches", "2"
    )
    assert "versions of weights that stages keep: 2, 1" in asked("show", "pipedream", "--devices", "2")


def test_a_page_has_a_bar_for_each_task(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    asked(
        "draw",
        "gpipe(recompute=true)",
        "--devices",
        "3",
        "--microbatches",
        "4",
        "--network",
        "1gbit",
        "--out",
        str(out),
    )
    page = out.read_text()
    assert page.count("<title>forward: microbatch") == 12
    assert page.count("<title>forward again: microbatch") == 11  # what follows at once is not computed again
    assert "Tasks as CSV" in page
