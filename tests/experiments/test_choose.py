"""Rows are tuned, and their tuning survives an interruption; a run is a formula here."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from laconic.experiments.choose_rows import choose
from laconic.experiments.folder import Folder
from laconic.experiments.outcome import Logged, RunOutcome
from laconic.experiments.progress import NoProgress
from laconic.experiments.row import Row
from laconic.experiments.settings import CompareError, Settings, Tuning

BEST = {"bsp": 0.1, "torch:ddp(bucket_cap_mb=1)": 0.2, "torch:ddp(bucket_cap_mb=5)": 0.2}
SECONDS = {"bsp": 5.0, "torch:ddp(bucket_cap_mb=1)": 9.0, "torch:ddp(bucket_cap_mb=5)": 8.0}


def run(row: Row, seed: int, label: str) -> RunOutcome:
    option, rate = row.arguments
    assert option == "--rate"
    final = 1 + math.log2(float(rate) / BEST[row.strategy]) ** 2
    seconds = SECONDS[row.strategy]
    return RunOutcome(logged=(Logged(1, seconds / 2, None, {"loss": 30.0}), Logged(9, seconds, None, {"loss": final})))


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    rows = ("bsp", "torch:ddp(bucket_cap_mb={1|5})")
    return Settings(("train.py",), rows, tuning=Tuning(0.05, "--rate", rivals=False))


def test_ddp_sets_the_target_wherever_it_stands_and_each_row_gets_its_own_rate(settings: Settings) -> None:
    chosen = choose(settings, Folder("a", settings), run, NoProgress())
    assert chosen.reference == 1
    assert (chosen.metric, chosen.falls) == ("loss", True)
    assert chosen.names == ["bsp at 0.1", "torch:ddp(bucket_cap_mb=5) at 0.2"]
    assert [row.arguments for row in chosen.rows] == [("--rate", "0.1"), ("--rate", "0.2")]
    assert chosen.departures == ("no rivals (--no-rivals)",)


def test_after_an_interruption_only_what_is_missing_runs(settings: Settings) -> None:
    folder = Folder("a", settings)
    ran: list[str] = []

    def interrupted(row: Row, seed: int, label: str) -> RunOutcome:
        if len(ran) == 30:
            raise KeyboardInterrupt
        ran.append(label)
        return run(row, seed, label)

    with pytest.raises(KeyboardInterrupt):
        choose(settings, folder, interrupted, NoProgress())
    before = len(ran)

    def counted(row: Row, seed: int, label: str) -> RunOutcome:
        ran.append(label)
        return run(row, seed, label)

    again = choose(settings, folder, counted, NoProgress())
    assert before == 30
    assert len(ran) == 3 * 7 * 2, "three strategies, seven rates, two seeds, each once"
    assert again == choose(settings, Folder("b", settings), run, NoProgress())


def test_a_metric_whose_direction_nobody_says_is_refused(settings: Settings) -> None:
    assert settings.tuning is not None
    odd = replace(settings, tuning=replace(settings.tuning, metric="something"))
    once = RunOutcome(logged=(Logged(9, 1.0, None, {"something": 3.0}),))
    with pytest.raises(CompareError, match="less of 'something' is better"):
        choose(odd, Folder("a", odd), lambda row, seed, label: once, NoProgress())


def test_a_script_without_the_metric_is_refused(settings: Settings) -> None:
    with pytest.raises(CompareError, match="logged no 'loss'"):
        choose(settings, Folder("a", settings), lambda row, seed, label: RunOutcome(), NoProgress())
