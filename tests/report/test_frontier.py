"""`laconic frontier`: what it prints, its JSON, its page and its refusals, on made-up rows."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from laconic.cli.app import app
from laconic.errors import LaconicError
from laconic.planner.runs import Run
from tests.frontier.rows import ladder
from tests.report.page.browser import browsing, missing
from tests.report.page.reading import Element, parsed, saved

GAPS = {"bsp / cast_bf16": 0.0, "diloco(30)": 0.01, "local(30)": 0.03, "bsp / power_sgd(4)+ef": 0.02}


def write(folder: Path, runs: Sequence[Run], name: str = "bytes-breadth") -> Path:
    folder.mkdir(exist_ok=True)
    lines = (json.dumps({**asdict(run), "curve": [list(point) for point in run.curve]}) + "\n" for run in runs)
    (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["frontier", *map(str, arguments)], catch_exceptions=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    about = {"device": "a <GPU>", "commit": "abc1234", "command": "python bench/made_up.py", "seconds": 60.0}
    runs = ladder(GAPS, noise=0.0005, rungs=("breadth", "depth"), shrinks=0.9, **about)
    return write(tmp_path_factory.mktemp("rows") / "runs", runs)


@pytest.fixture(scope="module")
def shown(folder: Path) -> tuple[str, str]:
    """What is printed, and the page."""
    out = folder.parent / "page.html"
    ended = invoke("--runs", folder, "--out", out, "--network", "100mbit", "--size", "10m")
    assert ended.exit_code == 0, ended.output
    return ended.output, out.read_text()


@pytest.fixture(scope="module")
def page(shown: tuple[str, str]) -> Element:
    return parsed(shown[1])


def test_it_prints_tables_orderings_the_place_and_a_verdict(shown: tuple[str, str]) -> None:
    out, _ = shown
    assert "Not made by PROTOCOL 2" in out
    assert "bytes, breadth: 3 M parameters, 8 workers, adamw, 1,500 steps" in out and "min of a <GPU>" in out
    assert re.search(r"^diloco\(30\) +0\.001 +3 .*\+1\.0", out, re.MULTILINE)
    assert re.search(r"outer Nesterov beats averaging at H ≥ 30 +holds +2 hold, 0 refute, of 2", out)
    assert "Time to the loss of tuned DDP at 100Mbit, 10 M parameters, 8 workers" in out
    assert re.search(r"^ +70 B\* +[A-C] .* · *$", out, re.MULTILINE)
    assert re.search(r"reaches the loss of tuned DDP [0-9.]+ times as fast at 100Mbit, 10 M parameters", out)
    assert "among 5 methods within 5 % of DDP, itself included, choosing by runs of 10 % of the steps" in out


def test_the_json_holds_every_cell_with_intervals(folder: Path) -> None:
    ended = invoke("--runs", folder, "--json", "--network", "100mbit", "--size", "10m")
    tree = json.loads(ended.output)
    assert (tree["task"], tree["bits_per_second"], tree["parameters"]) == ("bytes", 1e8, 1e7)
    assert len(tree["map"]) == 170 and {len(cell["offers"]) for cell in tree["map"]} == {3}
    for cell in (*tree["map"], tree["here"]):
        best = next((offer for offer in cell["offers"] if offer["pays"]), None)
        assert (cell["best"] is None) == (best is None)
        for offer in cell["offers"]:
            ends = offer["speed_up"]
            assert ends["low"] <= ends["middle"] <= ends["high"] and offer["pays"] == (ends["low"] > 1)
            assert offer["loss_by"] == ("measured" if cell["parameters"] <= 1.1e7 else "trend")
    assert [one["verdict"] for one in tree["orderings"]][1] == "holds"
    lines = {line["sentence"]: line for line in tree["tables"][0]["lines"]}
    assert lines["diloco(30) / none / allreduce"]["gap"]["middle"] == pytest.approx(0.01, abs=0.002)


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    made = ladder(GAPS, seeds=(1,), kind="convolutional")  # without a map, which takes longer
    runs = [replace(run, loss=None) if "local" in run.sentence and run.seed == 1 else run for run in made]
    out = invoke("--runs", write(tmp_path, runs), "--json").output
    lines = {line["sentence"]: line for line in json.loads(out)["tables"][0]["lines"]}
    assert "NaN" not in out and "Infinity" not in out
    assert lines["local_sgd(30) / none / allreduce"]["loss"] is None
    assert lines["diloco(30) / none / allreduce"]["gap"]["low"] is None


def test_the_page_loads_nothing_and_escapes_what_rows_say(shown: tuple[str, str]) -> None:
    _, text = shown
    assert "a &lt;GPU&gt;" in text and "a <GPU>" not in text
    assert "http" not in text.replace("http-equiv", "") and "default-src" in text


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
@pytest.mark.parametrize("width", [1200, 360])
def test_the_page_fits_a_screen_and_a_phone(shown: tuple[str, str], tmp_path: Path, width: int) -> None:
    (tmp_path / "page.html").write_text(shown[1])
    with browsing(tmp_path / "browser") as browser:
        browser.show(tmp_path / "page.html", width)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        assert browser.complaints() == []


def test_the_map_has_a_cell_for_each_place_and_a_line_where_losses_are_extrapolated(page: Element) -> None:
    wide = page.all("div", "wide")[0]
    cells = [rect for rect in wide.all("rect") if "cell" in rect.attributes["class"]]
    empty = [rect for rect in cells if "none" in rect.attributes["class"]]
    assert len(cells) == 170 and 0 < len(empty) < 170
    assert len([line for line in wide.all("line") if line.attributes["class"] == "edge"]) == 1
    assert any("nothing pays" in rect.all("title")[0].text for rect in empty)


def test_the_page_saves_the_map_and_every_raw_row(page: Element, folder: Path) -> None:
    files = {link.attributes["download"]: saved(link) for link in page.all("a", "save")}
    rows = list(csv.DictReader(io.StringIO(files["runs.csv"])))
    kept = [json.loads(line) for line in (folder / "bytes-breadth.jsonl").read_text().splitlines()]
    assert len(rows) == len(kept) and {row["command"] for row in rows} == {"python bench/made_up.py"}
    assert sorted(float(row["loss"]) for row in rows) == pytest.approx(sorted(row["loss"] for row in kept))
    assert len(list(csv.DictReader(io.StringIO(files["map.csv"])))) == 170 * 3


def test_the_page_shows_curves_trends_tables_and_orderings(page: Element) -> None:
    captions = [caption.text for caption in page.all("caption")]
    assert captions[:2] == ["Methods at 100Mbit, 10 M parameters, 8 workers", "Trends of the gap"]
    assert {"bytes, breadth", "bytes, depth", "Orderings", "Short runs", "Runs"} <= set(captions)
    figures = [caption.text for caption in page.all("figcaption")]
    assert figures == ["The fastest method to the loss of tuned DDP", "10 M parameters", "70 B parameters"]
    trends = next(table for table in page.all("table") if table.all("caption")[0].text == "Trends of the gap")
    assert any("at 3 M" in cell and "at 10 M" in cell for row in trends.rows() for cell in row)


def test_tasks_without_a_map_still_have_tables(tmp_path: Path) -> None:
    images = ladder(GAPS, task="cifar", kind="convolutional", metrics={"accuracy": 0.9})
    out = tmp_path / "page.html"
    shown = invoke("--runs", write(tmp_path / "a", images), "--task", "cifar", "--out", out).output
    assert "There is no map: times are those of transformers" in shown and "accuracy 0.9" in shown
    assert "There is no map" in parsed(out.read_text()).all("p", "verdict")[0].text
    short = [run for run in ladder(GAPS) if run.purpose != "fewer"]
    assert "no run of bsp on fewer tokens" in invoke("--runs", write(tmp_path / "b", short)).output
    assert "was measured on 4 workers" in invoke("--runs", tmp_path / "b", "--workers", "4").output


def test_a_table_that_is_being_made_says_so(tmp_path: Path) -> None:
    rates = [run for run in ladder(GAPS) if run.purpose == "rate"]
    shown = invoke("--runs", write(tmp_path, rates)).output
    assert "nothing is reported yet" in shown and "There is no map" in shown


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--task", "chess"], r"no training of the task 'chess' was measured: write one of bytes"),
        (["--network", "fast"], r'"fast" is no rate'),
        (["--size", "huge"], r'"huge" is no size of a model'),
        (["--workers", "1"], r"1 worker exchanges nothing"),
    ],
)
def test_what_makes_no_sense_is_refused(folder: Path, arguments: list[str], why: str) -> None:
    ended = invoke("--runs", folder, *arguments)
    assert isinstance(ended.exception, LaconicError) and re.search(why, str(ended.exception))


def test_no_rows_are_refused_in_a_sentence(tmp_path: Path) -> None:
    ended = invoke("--runs", tmp_path / "nothing")
    assert isinstance(ended.exception, LaconicError)
    assert re.fullmatch(r"there are no measured trainings in .*nothing: .*", str(ended.exception))
