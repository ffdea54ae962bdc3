"""`laconic validate`: sections that can be recomputed are, others are named with the reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from laconic.cli.app import app
from laconic.errors import LaconicError
from laconic.planner.validation import runs
from laconic.planner.validation.claims import BASES, SECTIONS
from laconic.planner.validation.errors import Errors
from laconic.planner.validation.sections import Recomputed, named, recompute
from laconic.planner.values import PlanError
from laconic.report import validation as report
from tests.planner.test_noise import made

STEPS = """model,network,r,workers,strategy,predicted_seconds,measured_seconds,low_seconds,high_seconds
chars,1gbit,2.5,4,bsp / none / allreduce / wfbp,0.11,0.10,0.09,0.12
chars,1gbit,2.5,4,bsp / topk(0.01)+ef / allreduce / wfbp,0.03,0.05,0.04,0.06
"""


def ring_rows() -> Iterator[str]:
    """Times of a system with a latency, a hop and a bandwidth, in the columns of the published file."""
    yield "framework,version,device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency,system"
    for name, twice in (("all_reduce", 2), ("all_gather", 1)):
        for gpus in (2, 4, 8):
            for elements in (256 << k for k in range(16)):
                steps = twice * (gpus - 1)
                milliseconds = 5e-3 + 1e-3 * steps + steps / gpus * 2 * elements / 2e8
                yield f"made,1,made,{name},NCCL,half,{gpus},{elements},{milliseconds},ring"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measurements of our own making: NCCL's and Pollux's, but no published step times."""
    path = tmp_path_factory.mktemp("data")
    (path / "nccl").mkdir()
    (path / "nccl" / "nccl_perf.csv").write_text("\n".join(ring_rows()) + "\n")
    traces = path / "pollux" / "traces" / "made"
    traces.mkdir(parents=True)
    for batch, run in made(200.0).items():
        columns = zip(run.progress, run.steps, run.metrics, run.squares, run.variances, strict=True)
        lines = [",".join(map(repr, row)) for row in columns]
        (traces / f"validation-{batch}.csv").write_text(
            "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *lines]) + "\n"
        )
    return path


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["validate", *arguments])


def test_what_has_data_runs_and_the_rest_is_named(folder: Path) -> None:
    result = invoked("--data", str(folder), "--json")
    assert result.exit_code == 0, result.exception
    found = json.loads(result.output)
    assert "there is no table" in found["skipped"]["published step times"]
    assert set(found) >= {"nccl", "pollux", "basis", "skipped"} and "published step times" not in found
    ring = found["nccl"][0]
    assert ring["system"] == "ring" and ring["count"]["mean"] < 0.01 and ring["ratio_to_plain"] < 0.1
    assert [target["share"] for target in found["pollux"][0]["targets"] if target["stated"]] == [0.9]
    assert all(target["largest_error"] < 1e-6 for target in found["pollux"][0]["targets"])
    assert found["basis"]["nccl"]["others"] and found["basis"]["pollux"]["fitted"]


def test_sections_are_printed_with_what_they_rest_on(folder: Path) -> None:
    result = invoked("--data", str(folder), "--section", "nccl", "--section", "pollux")
    assert result.exit_code == 0, result.exception
    for message in (
        "2 and 8",
        "4 GPUs left out: mean",
        "1 of 1 at 90 %",
        "fitted: two numbers",
        "ASTRA-sim",
        "known progress",
    ):
        assert message in result.output, message
    assert "published" not in result.output and "skipped" not in result.output


def test_nothing_that_runs_is_an_error_with_all_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LACONIC_DATA", raising=False)
    result = invoked("--section", "nccl", "--section", "pollux")
    assert result.exit_code != 0
    for message in ("nothing could be recomputed", "nccl: set LACONIC_DATA", "pollux: set LACONIC_DATA"):
        assert message in str(result.exception)
    assert "no section 'speed'" in str(invoked("--section", "speed").exception)


def test_names_of_sections_may_be_begun() -> None:
    assert [named(text) for text in ("pub", "NCCL", "pol", "lar", "real")] == list(SECTIONS)
    for text in ("", "p", "x"):
        with pytest.raises(
            LaconicError, match="write one of published step times, nccl, pollux, large models, real runs"
        ):
            named(text)


def test_real_runs_are_held_against_their_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    found = runs.read(STEPS)
    assert [run.inside for run in found.runs] == [True, False] and found.share_inside == 0.5
    errors = found.errors
    assert (errors.mean, errors.largest, errors.cells) == (pytest.approx(0.25), pytest.approx(0.4), 2)
    report.show_all(Recomputed(runs=found, skipped=(("nccl", "no data"),)))
    printed = capsys.readouterr().out
    assert "mean 25.0 %" in printed and "50 % of predictions inside" in printed and "skipped, nccl: no data" in printed
    values = json.loads(report.all_as_json(Recomputed(runs=found)))["real runs"]
    assert values["mean"] == pytest.approx(0.25) and len(values["runs"]) == 2


def test_the_shipped_table_is_read_or_said_to_be_missing() -> None:
    """It is made by a bench: without it the section says so, with it the section needs no data."""
    try:
        found = runs.validate()
    except PlanError as error:
        assert "no run has been measured yet" in str(error)
    else:
        assert recompute(None, ["real runs"]).runs == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        (STEPS.splitlines()[0], "has no rows"),
        (STEPS.replace("0.11", "fast"), "row 1: predicted_seconds is 'fast'"),
        (STEPS.replace("measured_seconds", "took"), "no column measured_seconds"),
        (STEPS.replace("0.05", "0"), "row 2: measured_seconds is '0': Expected number > 0"),
    ],
)
def test_tables_of_runs_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        runs.read(text)


def test_every_section_says_what_it_rests_on_and_cites_others() -> None:
    assert tuple(BASES) == SECTIONS
    for basis in BASES.values():
        assert basis.fitted and basis.not_fitted and basis.others
        assert all(claim.tool and claim.says and claim.where for claim in basis.others)


def test_errors_are_relative_and_without_signs() -> None:
    assert Errors.of([]) is None
    assert Errors.of([(1.5, 1.0), (0.5, 1.0), (1.0, 1.0)]) == Errors(pytest.approx(1 / 3), 0.5, 0.5, 3)
