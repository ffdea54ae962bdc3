"""A comparison on real processes: rows take turns, and one that dies leaves the others alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from tests.real.launching import SOURCE, processes_with

SCRIPT = Path(__file__).parents[1] / "experiments" / "turns.py"
BLOCK = 3


@pytest.mark.long
def test_rows_take_turns_and_a_row_that_dies_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "compared"
    rows = ("torch:ddp", "bsp / cast_bf16")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "laconic", "compare", "--workers", "2", "--block-steps", str(BLOCK), "--quick"),
            *(part for row in rows for part in ("--strategy", row)),
            *("--folder", str(folder), str(SCRIPT), "--steps", "12", "--dies", "cast_bf16"),
        ],
        env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert not processes_with(str(folder))
    table = done.stdout.splitlines()
    assert table[0].startswith("NOT MADE BY THE PROTOCOL (--quick)")
    assert any(line.startswith("FAILED  bsp / cast_bf16: ") and "rank 1" in line for line in table), done.stdout
    assert "`bsp / cast_bf16` failed" in done.stderr
    blocks = [json.loads(line) for line in (folder / "blocks.jsonl").read_text().splitlines()]
    for row in ("torch:ddp", "computing alone"):
        assert [block["steps"] for block in blocks if block["row"] == row] == [BLOCK] * 4
    turns = [turn for row in sorted((folder / "rows" / "rows").iterdir()) for turn in _turns(row)]
    assert len(turns) >= 2 * 4 + 2
    for (one, a), (other, b) in combinations(turns, 2):
        assert a[1] <= b[0] or b[1] <= a[0], f"{one} and {other} moved at the same time: {a}, {b}"


def _turns(row: Path) -> list[tuple[str, tuple[float, float]]]:
    """When each block of a row began and was last seen at work, on the machine's one clock."""
    lines = [json.loads(line) for line in (row / "metrics" / "rank-0.jsonl").read_text().splitlines()]
    steps = [(line["begin"], line["ready"]) for line in lines if "begin" in line]
    whole = [steps[k : k + BLOCK] for k in range(0, len(steps), BLOCK)]
    return [(row.name, (block[0][0], block[-1][1])) for block in whole]
