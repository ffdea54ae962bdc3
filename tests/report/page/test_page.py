"""The page as a whole: values, structure, safety, size, and the command."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laconic.cli.app import app
from laconic.cost.sharded_memory import GpuMemory
from laconic.planner.values import ShardedOption
from laconic.report.page.page import write
from tests.report.page import samples
from tests.report.page.reading import Element, parsed, saved


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Element]:
    """A page with all kinds of input."""
    folder = tmp_path_factory.mktemp("page")
    run = samples.write_run(
        folder / "one", [{"seconds": float(k), "loss": 2.0 / k} for k in (1, 2, 3)], log="it says hello"
    )
    samples.timeline().write(run / "trace.json")
    other = samples.write_run(folder / "two", [{"seconds": 1.0, "loss": 1.0}])
    paths = [samples.write_plan(folder / "plan.json"), samples.write_comparison(folder / "c"), run, other]
    out = write(paths, folder / "page.html")
    return out, parsed(out.read_text())


def _table(page: Element, caption: str) -> list[list[str]]:
    return next(table.rows() for table in page.all("table") if caption in table.all("caption")[0].text)


def test_a_plan_shows_its_verdict_its_line_and_its_ranked_table(everything: tuple[Path, Element]) -> None:
    _, page = everything
    assert page.all("p", "verdict")[0].text == "Use local(4)."
    line = 'laconic run --strategy "local(4)" train.py'
    assert page.all("div", "line")[0].all("code")[0].text == line
    assert page.all("button", "copy")[0].attributes["data-copy"] == line
    head, best, baseline = _table(page, "Strategies for")
    assert head[:4] == ["strategy", "step (ms)", "speed-up", "sent (kB)"]
    assert head[4:7] == ["computing (ms)", "coding (ms)", "exposed (ms)"]
    assert head[7:] == ["lossless", "loss × measured", "memory (kB)", "guarantee"]
    assert best[:7] == ["local(4)", "20.0 [18.0–22.0]", "1.30×", "0.400", "16.0", "0", "4.00"]
    assert best[7:] == ["no", "1.020× [0.990–1.050]", "400", "contraction with memory"]
    assert baseline[0] == "bsp / cast_bf16 (baseline)"
    assert baseline[7:] == ["yes", "same", "400", "–"]
    assert any(
        "20.0 ms" in tile.text and "18.0 ms to 22.0 ms" in tile.text for tile in page.all("ul", "tiles")[0].all("li")
    )


def test_a_plan_shows_what_does_not_fit(tmp_path: Path) -> None:
    memory = GpuMemory(2e9, 2e9, 12e9, activations=1e9)
    rows = (
        ShardedOption("data parallel", 1.0, None, 1.0, 4e9, 4e9, 0.5, 0.0, 0.5, memory, False, True, ""),
        ShardedOption(
            "ZeRO stage 3", 2.0, 3.0, 0.5, 6e9, 6e9, 0.5, 0.0, 1.5, replace(memory, optimizer=1e9), True, True, "x"
        ),
    )
    plan = replace(samples.advice(), sharded=rows, gpu_bytes=8e9, line="")
    page = parsed(write([samples.write_plan(tmp_path / "plan.json", plan)], tmp_path / "page.html").read_text())
    head, plain, way = _table(page, "Ways to shard")
    assert dict(zip(head, plain, strict=True))["memory (GB)"] == "17.0" and plain[-2:] == ["does not fit", "the same"]
    assert dict(zip(head, way, strict=True))["at most (s)"] == "3.00" and way[-2:] == ["yes", "the same"]
    assert not page.all("div", "line"), "nothing to copy"


def test_a_comparison_shows_its_rows_and_saves_its_own_table(everything: tuple[Path, Element]) -> None:
    out, page = everything
    rows = _table(page, "Rows, the baseline first")
    assert [row[0] for row in rows] == ["strategy", "bsp", "local(period=4)", "bsp / cast_bf16"]
    assert rows[0][1:5] == ["step (ms)", "×", "exposed (ms)", "×"]
    assert rows[2][1:3] == ["24.2", "0.923×"]
    link = next(a for a in page.all("a", "save") if a.attributes["download"] == "comparison-1.csv")
    assert saved(link) == (out.parent / "c" / "table.csv").read_text()


def test_predictions_are_held_against_measurements_where_both_are_given(everything: tuple[Path, Element]) -> None:
    _, page = everything
    rows = _table(page, "Predicted and measured")
    assert [row[0] for row in rows[1:]] == ["local(4)", "bsp / cast_bf16"]
    assert rows[1][1:] == ["20.0 [18.0–22.0]", "24.2", "-17.5 %", "no"]
    (section,) = [section for section in page.all("section") if section.attributes["id"] == "predicted"]
    assert not section.all("p", "warn")  # two workers in both


def test_a_plan_for_another_number_of_workers_is_not_held_silently(tmp_path: Path) -> None:
    plan = samples.write_plan(tmp_path / "plan.json", samples.advice(workers=8))
    page = parsed(write([plan, samples.write_comparison(tmp_path / "c")]).read_text())
    assert any("for 8 workers, the comparison ran 2" in p.text for p in page.all("p", "warn"))


def test_runs_show_what_ran_and_their_curves_side_by_side(everything: tuple[Path, Element]) -> None:
    _, page = everything
    runs = [section for section in page.all("section") if (section.attributes["id"] or "").startswith("run")]
    assert [run.attributes["id"] for run in runs] == ["runs", "run-1", "run-2"]
    assert [item.text for item in runs[0].all("ul", "legend")[0].all("li")] == [
        "bsp / cast_bf16 (one)",
        "bsp / cast_bf16 (two)",
    ]
    assert "laconic run train.py" in runs[1].text
    assert "laconic 0.1.0, torch 2" in runs[1].text
    assert "It ended well." in runs[1].text
    assert runs[1].all("pre", "log")[0].text == "it says hello"
    assert runs[1].all("svg", "lanes")
    assert not runs[2].all("svg", "lanes")


def test_a_run_that_failed_says_who_was_lost(tmp_path: Path) -> None:
    lost = {"ranks": [1], "machine": "m", "cause": "it was killed", "advice": "See its log.", "final": False}
    result = {"state": "failed", "exit_code": 137, "lost": lost}
    page = parsed(write([samples.write_run(tmp_path / "r", log="boom", result=result)]).read_text())
    message = page.all("p", "warn")[0].text
    assert "exit code 137" in message
    assert "rank 1 on m was lost: it was killed. See its log." in message
    assert "open" in page.all("details")[0].attributes


def test_structure_is_what_readers_of_all_kinds_need(everything: tuple[Path, Element]) -> None:
    _, page = everything
    assert page.all("html")[0].attributes == {"lang": "en"}
    assert len(page.all("h1")) == 1
    levels = [int(e.tag[1]) for e in page.everything() if e.tag in ("h1", "h2", "h3", "h4")]
    assert all(b <= a + 1 for a, b in pairwise(levels))
    for picture in page.all("svg"):
        assert picture.attributes.get("aria-label") or picture.attributes.get("aria-hidden") == "true"
    for table in page.all("table"):
        assert table.all("caption")
        assert {"row", "col"} == {head.attributes["scope"] for head in table.all("th")}
    assert all(button.text and button.attributes["type"] == "button" for button in page.all("button"))
    ids = Counter(e.attributes["id"] for e in page.everything() if "id" in e.attributes)
    assert max(ids.values()) == 1
    assert {a.attributes["href"] for a in page.all("nav")[0].all("a")} <= {f"#{name}" for name in ids}


def test_every_table_and_the_curves_can_be_saved(everything: tuple[Path, Element]) -> None:
    _, page = everything
    for box in page.all("div", "table"):
        (link,) = box.all("a", "save")
        rows = list(csv.reader(io.StringIO(saved(link))))
        assert len(rows) == len(box.all("tr"))
        assert len({len(row) for row in rows}) == 1
    names = [link.attributes["download"] for link in page.all("a", "save")]
    assert len(names) == len(set(names))
    assert {"plan-1.csv", "plan-1-layers.csv", "predicted.csv", "comparison-1-curves.csv", "runs-curves.csv"} <= set(
        names
    )


def test_nothing_outside_is_referred_to(everything: tuple[Path, Element]) -> None:
    out, page = everything
    for element in page.everything():
        for name in ("src", "href", "action", "srcset", "xlink:href", "data"):
            assert (element.attributes.get(name) or "#").startswith(("#", "data:"))
    style = page.all("style")[0].text
    assert "@import" not in style
    assert style.count("url(") == style.count("url(#")
    assert "default-src 'none'" in (page.all("meta")[1].attributes["content"] or "")
    assert "http" not in out.read_text().replace("http-equiv", "")


def test_hostile_names_and_logs_stay_text(tmp_path: Path) -> None:
    bad = samples.HOSTILE
    plan = samples.advice(samples.option(bad, 0.004, guarantee=bad, lossless=False), subject=bad, verdict=bad)
    plan = replace(
        plan, layers=(replace(plan.layers[0], name=bad), *plan.layers[1:]), network=bad, notes=(bad,), line=bad
    )
    paths = [
        samples.write_plan(tmp_path / "plan.json", plan),
        samples.write_comparison(tmp_path / "c", strategies=("bsp", bad, f"{bad}2"), failed=bad),
        samples.write_comparison(tmp_path / "d", strategies=("bsp", bad)),
        samples.write_run(
            tmp_path / "r", [{"seconds": 1.0, bad: 2.0}], log=bad, strategy=bad, machine=bad, versions={bad: bad},
            command=["laconic", bad], targets={bad: 1.0}, result={"state": bad, "exit_code": bad},
        ),
    ]  # fmt: skip
    trace = samples.timeline(workers=1, steps=1)
    trace.add(0, "communication", bad, 1.0, 2.0)
    trace.write(tmp_path / "r" / "trace.json")
    page = parsed(write(paths, tmp_path / "page.html").read_text())
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert not any(name.startswith("on") for e in page.everything() for name in e.attributes)
    assert bad in page.text
    assert page.all("pre", "log")[0].text == bad
    assert page.all("button", "copy")[0].attributes["data-copy"] == bad


@pytest.mark.long
def test_a_usual_comparison_is_a_small_page(tmp_path: Path) -> None:
    rows = [f"local(period={k}) / powersgd({k})+ef / allreduce / mgwfbp" for k in range(1, 13)]
    folder = samples.write_comparison(tmp_path / "c", strategies=rows, seeds=(2, 3, 4, 5, 6), logs=60)
    assert write([folder]).stat().st_size < 500_000


@pytest.mark.long
def test_a_long_trace_is_a_small_page(tmp_path: Path) -> None:
    folder = samples.write_run(tmp_path / "r", [{"seconds": 0.1 * k, "loss": 1 / (k + 1)} for k in range(20_000)])
    samples.timeline(workers=16, steps=200).write(folder / "trace.json")
    assert write([folder]).stat().st_size < 700_000


def test_the_command_writes_into_the_first_folder_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, folder = samples.write_plan(tmp_path / "plan.json"), samples.write_run(tmp_path / "r")
    done = CliRunner().invoke(app, ["report", str(plan), str(folder)])
    assert (done.exit_code, done.stdout) == (0, f"{folder / 'report.html'}\n")
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["report", str(plan)]).stdout == "report.html\n"
    assert CliRunner().invoke(app, ["report", str(plan), "--out", "other.html"]).stdout == "other.html\n"
    assert (tmp_path / "other.html").read_text().startswith("<!doctype html>")


@pytest.mark.long
def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "laconic", "report", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("laconic: ")
    assert "is no run" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["report", str(samples.write_run(tmp_path / "r")), "--out", str(tmp_path / "no" / "x.html")]
    )
    assert "cannot be written" in str(done.exception)
