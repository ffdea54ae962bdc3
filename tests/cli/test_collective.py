"""`laconic collective`: programs listed, verified and priced, and one carried out between processes it starts."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from laconic.cli.app import app
from laconic.errors import LaconicError


def asked(*arguments: str) -> str:
    found = CliRunner().invoke(app, ["collective", *arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def row_of(output: str, name: str) -> list[str]:
    """Return the cells of the row of a table that begins with this name."""
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in output.splitlines() if "|" in line]
    return next(cells for cells in rows if cells[0] == name)


@pytest.mark.long
def test_processes_sum_exactly_and_their_bytes_are_the_rings() -> None:
    output = asked("run", "ring", "--workers", "3", "--bytes", "120000", "--repeats", "2")
    assert "3 processes on the loopback, 0.12 MB, median of 2; every sum is exact" in output
    cells = row_of(output, "ring")
    assert cells[3] == "0.16 MB" and cells[4].endswith("as probed")  # 2 (3 - 1) / 3 of the vector


def test_what_is_no_all_reduce_is_refused_before_any_process_starts() -> None:
    with pytest.raises(LaconicError, match="only an all-reduce can be run"):
        asked("run", "ring_gather", "--workers", "3")
