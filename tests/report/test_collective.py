"""`laconic collective`: what it prints is what programs are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from laconic.collective.generators import generators, make_program
from laconic.errors import ProgramError
from laconic.report.collective import print_list, print_prices, print_program, verify_files, write_page


def test_every_program_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    print_list()
    shown = capsys.readouterr().out
    assert all(f"| {one.name} " in shown and one.relation in shown for one in generators())


def test_a_program_is_shown_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    print_program("leader", 6, 3)
    shown = capsys.readouterr().out
    assert "all_reduce" in shown and "step 0" in shown
    print_program("ring", 64, 1)
    assert "step 0" not in capsys.readouterr().out, "too many to be read"


@pytest.mark.parametrize("form", ["json", "msccl"])
def test_what_is_shown_for_other_tools_can_be_verified(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in which one send is gone is refused."""
    print_program("ring", 4, 1, form)
    path = tmp_path / "ring"
    path.write_text(capsys.readouterr().out)
    verify_files([path])
    assert "proved: all_reduce of 4 ranks" in capsys.readouterr().out
    if form == "json":
        held = json.loads(path.read_text())
        held["sends"] = held["sends"][:-1]
        path.write_text(json.dumps(held))
        with pytest.raises(ProgramError, match="is no all_reduce of 4 ranks"):
            verify_files([path])
    with pytest.raises(ProgramError, match="shown as text, json"):
        print_program("ring", 4, 1, "yaml")


def test_the_cheapest_program_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The hosts of a network file are those of the programs."""
    network = tmp_path / "hosts.toml"
    network.write_text(
        '[network]\nlevels = [{bandwidth = "10gbit"}, {workers = 4, bandwidth = "100mbit", latency = "1ms"}]\n'
    )
    print_prices(["ring", "hierarchical", "binomial"], 8, None, str(network), 8e6)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| ring", "| hier", "| bino"))]
    assert [row.split()[1] for row in rows] == ["hierarchical", "ring", "binomial"]
    with pytest.raises(ProgramError, match="power of two"):
        print_prices(["near_first_halving"], 6, None, "1gbit", 8e6)


def test_a_picture_has_a_line_for_each_send(tmp_path: Path) -> None:
    program = make_program("ring", 3)
    write_page("ring", 3, 1, tmp_path / "ring.html")
    written = (tmp_path / "ring.html").read_text()
    assert written.count("which adds it") == (program.sends.op == 1).sum()
    assert written.count("which copies it") == (program.sends.op == 0).sum()
