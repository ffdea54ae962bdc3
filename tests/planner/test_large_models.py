"""Published iterations of large transformers against predictions: what was promised of the errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from laconic.cli.app import app
from laconic.parallel.hybrid.cluster import DGX_A100, HOST_A100_40GB, Constants
from laconic.parallel.hybrid.iteration import iteration_seconds
from laconic.parallel.hybrid.published import Published, sc21
from laconic.parallel.hybrid.runs import FULL, NONE
from laconic.planner.validation import large_models, vtrain
from laconic.planner.validation.large_models import LARGE_NAMES, SMALL_NAMES, Group, fit, of_many_hosts, of_one_host
from laconic.planner.values import PlanError
from tests.data import FOLDER, folder_of


@pytest.fixture(scope="module")
def packaged() -> dict[str, Group]:
    return {group.name: group for group in large_models.validate(None).groups}


def test_each_of_the_ten_is_predicted_from_the_others(packaged: dict[str, Group]) -> None:
    errors = packaged["Megatron-LM, SC 2021"].errors
    assert errors.cells == 10 and errors.mean <= 0.08 and errors.largest <= 0.10


def test_three_more_are_predicted_with_the_same_constant(packaged: dict[str, Group]) -> None:
    errors = packaged["Megatron-Turing NLG 530B"].errors
    assert errors.cells == 3 and errors.mean <= 0.10
    assert packaged["the same, if it were Megatron-LM"].errors.mean > errors.mean
    assert packaged["Megatron-Turing NLG 530B"].constants == packaged["Megatron-LM, SC 2021"].constants


def test_a_row_does_not_predict_itself(packaged: dict[str, Group]) -> None:
    """Another measured time of one row changes every prediction but its own."""
    rows = list(sc21())
    rows[3] = replace(rows[3], seconds=3 * rows[3].seconds)
    changed = large_models._left_out(rows).cases
    told = packaged["Megatron-LM, SC 2021"].cases
    moved = [abs(a.predicted / b.predicted - 1) > 1e-3 for a, b in zip(changed, told, strict=True)]
    assert moved == [k != 3 for k in range(10)]


def test_one_host_is_predicted_from_twenty_of_its_rows() -> None:
    rows = vtrain.read(folder_of("vtrain").parent / vtrain.SINGLE, NONE)
    group = of_one_host(rows)
    assert group.errors.cells == len(rows) - 20 and group.errors.mean <= 0.10
    names = {case.name for case in group.cases}
    moved = [replace(row, seconds=2 * row.seconds) if row.name in names else row for row in rows]
    assert of_one_host(moved).constants == group.constants


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_other_rows_would_do_as_well(seed: int) -> None:
    rows = vtrain.read(folder_of("vtrain").parent / vtrain.SINGLE, NONE)
    order = np.random.default_rng(seed).permutation(len(rows))
    known, others = ([rows[k] for k in part] for part in (order[:20], order[20:]))
    constants = fit(known, SMALL_NAMES, HOST_A100_40GB)
    errors = [iteration_seconds(row.run, HOST_A100_40GB, constants) / row.seconds - 1 for row in others]
    assert np.mean(np.abs(errors)) <= 0.10


def test_the_order_of_the_table_does_not_matter() -> None:
    rows = vtrain.read(folder_of("vtrain").parent / vtrain.SINGLE, NONE)
    assert of_one_host(rows[::-1]).errors.mean == pytest.approx(of_one_host(rows).errors.mean, rel=1e-6)


def test_many_hosts_are_predicted_with_the_constant_of_the_ten() -> None:
    rows = vtrain.read(folder_of("vtrain").parent / vtrain.MULTI, FULL)
    group = of_many_hosts(rows, fit(sc21(), LARGE_NAMES, DGX_A100))
    assert group.errors.cells == len(rows) and group.errors.mean <= 0.12


def made(rows: int, milliseconds: float | None = None) -> str:
    """A table of our own making, whose times are the model's own."""
    names = "global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism"
    lines = [f"{names},data parallelism,pipeline parallelism,iteration time (ms)"]
    for k in range(rows):
        sizes = (16, 1 + k % 2, 1024 * (1 + k % 3), 16, 12, 1024, 2 ** (k % 3), 2, 2 ** (k % 2))
        lines.append(",".join(map(str, (*sizes, 1.0 if milliseconds is None else milliseconds))))
    return "\n".join(lines) + "\n"


def test_times_of_the_models_own_making_are_found_again(tmp_path: Path) -> None:
    (tmp_path / "vtrain").mkdir()
    path = tmp_path / vtrain.SINGLE
    path.write_text(made(40))
    true = replace(Constants(), product_share=0.5, launch_seconds=50e-6, collective_seconds=80e-6)
    rows: list[Published] = [
        replace(row, seconds=iteration_seconds(row.run, HOST_A100_40GB, true)) for row in vtrain.read(path, NONE)
    ]
    assert of_one_host(rows).errors.largest < 0.02
    assert set(SMALL_NAMES) <= set(vars(true))


def test_a_table_that_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(made(2).replace("16,1,1024", "15,2,1024"))
    with pytest.raises(PlanError, match=r"row 1: .* does not divide"):
        vtrain.read(path, NONE)
    path.write_text(made(1, -1.0))
    with pytest.raises(PlanError, match="is no table of vTrain's"):
        vtrain.read(path, NONE)


def test_too_few_rows_are_left_out_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "vtrain").mkdir()
    (tmp_path / vtrain.SINGLE).write_text(made(20))
    found = large_models.validate(tmp_path)
    assert "20 are fitted" in found.notes[0] and len(found.groups) == 3


def test_the_command_prints_errors_beside_those_of_others() -> None:
    arguments = ["validate", "--section", "large"] + (["--data", str(FOLDER)] if FOLDER.is_dir() else [])
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "160", "LACONIC_DATA": None})
    assert result.exit_code == 0, result.exception
    for message in ("Megatron-LM, SC 2021", "1008B", "3.65 %", "8.37 %", "14.73 %", "nothing fitted to these rows"):
        assert message in result.output
    values = json.loads(CliRunner().invoke(app, [*arguments, "--json"], env={"LACONIC_DATA": None}).output)
    group = values["large models"]["groups"][0]
    assert group["errors"]["cells"] == len(group["cases"]) == 10
    assert values["basis"]["large models"]["others"][0]["tool"] == "Calculon"
