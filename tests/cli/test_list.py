"""`laconic list`, `laconic show` and what the command line promises before any command runs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from rich.console import Console
from typer.testing import CliRunner

import laconic
from laconic import registry
from laconic._version import __version__
from laconic.cli import app as cli
from laconic.cli import catalogue
from laconic.registry import Technique, knob, named_sentence, technique
from laconic.strategy import Strategy, Word


@pytest.fixture
def toy_words() -> Iterator[None]:
    with registry.temporary(empty=True):

        @technique("topk", paper="Aji and Heafield, EMNLP 2017", aliases=["sparse"], claims=["what is sent is kept"])
        @dataclass(frozen=True)
        class TopK(Technique):
            """Keep the [largest].

            The rest stays at home.
            """

            axis: ClassVar[str] = "compression"
            ratio: float = knob(0.01, above=0, high=1, doc="share that is sent")
            chunk_bytes: int = knob(2**20, low=1)

        named_sentence(
            "small_talk",
            "[topk]@node",
            axis="sync",
            paper="nobody, 2020",
            doc="Say little.",
            evidence="fixture",
            reproduces="talk.npz",
        )
        yield


def run(*arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["laconic", *arguments])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    captured = capsys.readouterr()
    return int(leaving.value.code or 0), captured.out, captured.err


def answer(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.usefixtures("toy_words")
def test_list_as_json_holds_every_technique() -> None:
    assert json.loads(answer("list", "--json")) == [
        {
            "name": "small_talk",
            "axis": "sync",
            "kind": "sentence",
            "paper": "nobody, 2020",
            "evidence": "fixture",
            "reproduces": "talk.npz",
            "holds": "",
            "aliases": [],
            "summary": "Say little.",
            "why_no_word": "",
        },
        {
            "name": "topk",
            "axis": "compression",
            "kind": "word",
            "paper": "Aji and Heafield, EMNLP 2017",
            "evidence": "mechanism",
            "reproduces": "",
            "holds": "",
            "aliases": ["sparse"],
            "summary": "Keep the [largest].",
            "why_no_word": "",
        },
    ]


@pytest.mark.usefixtures("toy_words")
def test_list_is_a_table_of_one_axis_or_all() -> None:
    everything = answer("list")
    assert "small_talk" in everything and "Keep the [largest]." in everything
    assert "small_talk" not in answer("list", "Compression")


def test_a_piped_list_has_one_short_line_for_each_technique() -> None:
    lines = answer("list").splitlines()
    assert [line.split()[0] for line in lines] == [entry.name for entry in registry.entries()]
    assert [line.split()[2] for line in lines] == [entry.evidence for entry in registry.entries()]
    assert max(map(len, lines)) <= 124


def test_a_list_is_counted_by_grades_beside_what_is_piped() -> None:
    counted = CliRunner().invoke(cli.app, ["list"]).stderr
    for grade in registry.Evidence:
        there = [entry.name for entry in registry.entries() if entry.evidence is grade]
        assert f" {len(there)} {grade}" in counted
        assert [line.split()[0] for line in answer("list", "--grade", grade.upper()).splitlines()] == there
    assert counted.startswith(f"{len(registry.entries())} techniques: ")


@pytest.mark.usefixtures("toy_words")
def test_a_grade_is_one_of_an_axis_or_of_all() -> None:
    assert [row["name"] for row in json.loads(answer("list", "--grade", "fixture", "--json"))] == ["small_talk"]
    assert answer("list", "compression", "--grade", "fixture") == ""
    result = CliRunner().invoke(cli.app, ["list", "--grade", "mechanism"])
    assert result.stdout.split()[:3] == ["topk", "compression", "mechanism"]
    assert result.stderr == "1 technique: 0 fixture, 0 third-party, 0 published, 1 mechanism, 0 modelled\n"


def test_an_unknown_grade_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run("list", "--grade", "rumour", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, out) == (2, "")
    assert err.startswith('laconic: "rumour" is no grade of evidence; write one of fixture, third-party, published, ')


def test_an_axis_without_techniques_says_so() -> None:
    said = answer("list", "protocol")
    assert said.startswith("nothing is registered on the axis protocol yet; there is something on sync, compression,")
    assert json.loads(answer("list", "protocol", "--json")) == []


def test_data_says_where_published_measurements_come_from_and_which_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LACONIC_DATA", raising=False)
    told = answer("data")
    assert told.startswith("LACONIC_DATA is not set: set it to a folder of yours.") and "\nfound" not in told
    for part in ("nccl/nccl_perf.csv", "https://github.com/HKBU-HPML/ddl-benchmarks", "Apache-2.0", "laconic validate"):
        assert part in told
    (tmp_path / "nccl").mkdir()
    (tmp_path / "nccl" / "nccl_perf.csv").touch()
    here = [row["places"] for row in json.loads(answer("data", "--data", str(tmp_path), "--json")) if row["found"]]
    assert here == [["nccl/nccl_perf.csv"]]


def test_an_unknown_axis_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run("list", "colour", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, out) == (2, "")
    assert err.startswith('laconic: "colour" is no axis; write one of sync, compression, ')
    assert err.count("\n") == 1


@pytest.mark.usefixtures("toy_words")
def test_show_a_word() -> None:
    shown = answer("show", "SPARSE")
    for line in (
        "topk: word of compression",
        "Keep the [largest].",
        "The rest stays at home.",
        "paper:      Aji and Heafield, EMNLP 2017",
        "evidence:   mechanism",
        "aliases:    sparse",
        f"module:     {__name__}",
        "  ratio: share that is sent (a number, above 0 and at most 1; default 0.01)",
        "  chunk_bytes (a whole number, at least 1; default 1MiB)",
        "  what is sent is kept",
    ):
        assert line in shown.splitlines()


@pytest.mark.usefixtures("toy_words")
def test_show_a_named_sentence() -> None:
    assert "stands for: [topk]@node" in answer("show", "smalltalk").splitlines()


def test_every_technique_that_is_no_word_says_why_in_a_whole_sentence() -> None:
    functions = [entry for entry in registry.entries() if entry.kind == "function"]
    assert len(functions) > 20
    for entry in functions:
        why = entry.why_no_word
        assert why[:1].isupper() and why.endswith(".") and len(why.split()) >= 8, f"{entry.name}: {why!r}"


def test_what_is_no_word_is_marked_in_lists_and_shown_with_the_reason() -> None:
    reasons = {entry.name: entry.why_no_word for entry in registry.entries() if entry.kind == "function"}
    assert {"omgs_sgd", "general_scheduler", "byteps", "geryon", "lars", "theory_stich_2019"} <= reasons.keys()
    marked = {line.split()[0] for line in answer("list").splitlines() if " (no word) " in line}
    assert marked == reasons.keys()
    listed = {row["name"]: row["why_no_word"] for row in json.loads(answer("list", "--json"))}
    assert {name: why for name, why in listed.items() if why} == reasons
    for name in ("mercury", "theory_stich_2019"):
        assert f"no word:    {reasons[name]}" in answer("show", name).splitlines()
    assert "no word" not in answer("show", "topk")


def test_a_table_has_the_reason_below_the_summary() -> None:
    entry = registry.find("geryon")
    console = Console(width=400, file=io.StringIO())
    console.print(catalogue._table((entry, registry.find("topk"))))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[2].strip() == f"No word: {entry.why_no_word}" and len(lines) == 4


@pytest.mark.usefixtures("toy_words")
def test_show_names_the_nearest(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = run("show", "topq", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, err) == (2, "laconic: no technique is called topq; write topk\n")


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("--version", capsys=capsys, monkeypatch=monkeypatch) == (0, f"laconic {__version__}\n", "")


def test_help_answers_without_torch() -> None:
    program = (
        "import sys\n"
        "from laconic.cli.app import main\n"
        "sys.argv = ['laconic', '--help']\n"
        "try:\n    main()\n"
        "finally:\n    assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(laconic.__file__).parents[1])}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "list" in ran.stdout and "show" in ran.stdout


@pytest.mark.long
def test_what_the_library_itself_registers_can_be_shown_and_said() -> None:
    for entry in registry.entries():
        assert entry.name in answer("show", entry.name)
        if entry.kind == "sentence":
            strategy = Strategy.parse(entry.name)
            assert Strategy.parse(str(strategy)) == strategy
        elif entry.kind == "word" and entry.axis in registry.AXES:
            knobs = registry.knobs(entry.target)  # type: ignore[arg-type]
            given = {knob.name: 1 for knob in knobs if knob.default is MISSING}
            assert isinstance(Word.of(entry.name, **given).make(), entry.target)  # type: ignore[arg-type]
