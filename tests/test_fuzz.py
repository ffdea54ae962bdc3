"""Spoilt inputs of every reader and command are accepted or refused in a sentence; `bench/fuzz.py` tries more."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

import pytest
import torch
from click.testing import CliRunner
from typer.main import get_command

import laconic
from laconic.cli import app as cli
from laconic.errors import LaconicError, WriteError
from laconic.files import make_folder, replacing, write_text
from laconic.launch.profiling import measure
from laconic.planner.validation.claims import PUBLISHED
from laconic.planner.validation.sections import recompute
from laconic.reading import Positive, Source
from laconic.report import data as report_data
from laconic.report.page.page import write as write_page
from laconic.values.profile import Profile, ProfileError
from tests.fuzz.commands import commands
from tests.fuzz.readers import readers, throughputs
from tests.fuzz.trying import Tally, try_inputs, write
from tests.profile.test_values import profile
from tests.report.page import samples

SLOW = ("validate", "plan", "iteration", "comparison's folder", "mixing")


def try_all(folder: Path, count: int, seed: int) -> None:
    """Try so many inputs of each subject; fewer of those that compute for longer."""
    tried = 0
    for place, subject in enumerate((*readers(), *commands())):
        tally, own = Tally(), max(1, count // 4) if subject.name.startswith(SLOW) else count
        try_inputs(subject, make_folder(folder / str(place)), own, Random(f"{seed} {subject.name}"), tally)
        assert not tally.findings, tally.findings[0]
        tried += tally.accepted + tally.refused
    assert tried >= 40 * count


def test_spoilt_inputs_are_refused_in_a_sentence(tmp_path: Path) -> None:
    try_all(tmp_path, 2, seed=0)


@pytest.mark.long
def test_many_spoilt_inputs_are_refused_in_a_sentence(tmp_path: Path) -> None:
    try_all(tmp_path, 20, seed=1)


# ---------------------------------------------------------------------------------------------- what a refusal says


def test_a_table_of_throughputs_without_a_method_says_which(tmp_path: Path) -> None:
    files = throughputs()
    table = files["ddl-benchmarks/throughput.csv"].decode().replace("MG-WFBP,900,1.3", "MG-WFBP,,")
    write(tmp_path, {**files, "ddl-benchmarks/throughput.csv": table.encode()})
    with pytest.raises(LaconicError, match=r"10GbE, ResNet-50 on 4 GPUs has no MG-WFBP, .*: complete it, or leave"):
        recompute(tmp_path, [PUBLISHED])


def test_a_table_with_fewer_methods_is_validated(tmp_path: Path) -> None:
    write(tmp_path, throughputs())
    (found,) = recompute(tmp_path, [PUBLISHED]).published or ()
    assert found.methods == ("BSP-A2A", "WFBP-A2A", "MG-WFBP")
    line = ["validate", "--data", str(tmp_path), "--section", "published"]
    result = CliRunner().invoke(get_command(cli.app), line)
    assert result.exit_code == 0 and "chosen by prediction" in result.output


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a\n1\n", "it has no column b"),
        ("a,b\n1,nan\n", "row 1: b is 'nan': Expected number > 0"),
        ("# a comment\na,b\n1,2\n1,x\n", "row 2: b is 'x': Expected number, got text"),
        ("a,b\n", "it has no rows"),
        ("", "it has no rows"),
    ],
)
def test_a_table_is_refused_by_row_and_column(text: str, sentence: str) -> None:
    from dataclasses import make_dataclass

    kind = make_dataclass("Row", [("a", int), ("b", Positive)])
    with pytest.raises(LaconicError, match=rf"t.csv is no table \({sentence}.*\): write one"):
        Source("t.csv", "table", "write one").rows(text, kind)


def test_a_misspelt_name_is_not_ignored() -> None:
    text = profile().to_json().replace('"backward_seconds"', '"backwards_seconds"', 1)
    with pytest.raises(ProfileError, match=r"is no profile .it has an unknown 'backwards_seconds'"):
        Profile.from_json(text)


def test_a_damaged_checkpoint_is_no_advice_to_trust_it(tmp_path: Path) -> None:
    model, optimizer = laconic.distribute(
        plain := torch.nn.Linear(2, 2), torch.optim.SGD(plain.parameters(), 0.1), "bsp"
    )
    kept = laconic.checkpoint(tmp_path, model, optimizer) / "rank-0.pt"
    kept.write_bytes(kept.read_bytes()[:300])
    with pytest.raises(LaconicError, match="cannot be read as a checkpoint") as refusal:
        laconic.resume(tmp_path, model, optimizer)
    assert "weights_only" not in str(refusal.value)


# ---------------------------------------------------------------------------------------------- writing


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "kept.txt"
    write_text(path, "before")
    with pytest.raises(WriteError, match=r"kept.txt cannot be written .File too large.: make room"), small_files():
        write_text(path, "after" * 10_000)
    assert path.read_text() == "before" and [each.name for each in tmp_path.iterdir()] == ["kept.txt"]


def test_a_checkpoint_on_a_full_disk_leaves_the_one_before(tmp_path: Path) -> None:
    model, optimizer = laconic.distribute(
        plain := torch.nn.Linear(99, 99), torch.optim.SGD(plain.parameters(), 0.1), "bsp"
    )
    kept = laconic.checkpoint(tmp_path, model, optimizer)
    with pytest.raises(WriteError, match="cannot be written"), small_files():
        laconic.checkpoint(tmp_path, model, optimizer)
    assert (tmp_path / "latest").read_text() == kept.name
    assert laconic.resume(tmp_path, model, optimizer) == {}


@pytest.mark.parametrize("place", ["file/page.html", "file/more/page.html", "x" * 300])
def test_places_that_cannot_be_written_are_refused(tmp_path: Path, place: str) -> None:
    """A folder below a file: what permissions forbid, they do not forbid root."""
    (tmp_path / "file").touch()
    samples.write_plan(tmp_path / "plan.json")
    for attempt in (
        lambda: write_page([tmp_path / "plan.json"], tmp_path / place),
        lambda: make_folder(tmp_path / place / "more"),
    ):
        with pytest.raises(WriteError, match="cannot be written"):
            attempt()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "plan.json"]


def test_a_cache_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('it ran')")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "train.py"))
    with pytest.raises(WriteError, match=r"train.py/laconic/profiles cannot be written .Not a directory."):
        measure((str(tmp_path / "train.py"),), workers=1)


def test_an_interrupted_block_leaves_nothing_beside(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "a") as beside:
        beside.write_text("half")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_a_sentence() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(laconic.__file__).parents[1])}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "laconic", "data"]
        ran = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 2
    assert (
        ran.stderr == "laconic: the output cannot be written (No space left on device): make room, or write elsewhere\n"
    )


def test_a_defect_is_a_sentence_with_its_traceback_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["laconic", "data"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(report_data, "shown", lambda folder: {}["x"])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    (details,) = tmp_path.iterdir()
    sentence = f"laconic: KeyError: 'x'. This was not foreseen: please report it, with the details in {details}\n"
    assert (leaving.value.code, capsys.readouterr().err) == (70, sentence)
    assert "Traceback" in details.read_text()


class small_files:
    """Within it, this process can write files of 4 KiB at most, as if the disk were full then."""

    def __enter__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, self._before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)
