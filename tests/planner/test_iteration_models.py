"""What one iteration takes under each registered model of a schedule, and the command that says so."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laconic import registry
from laconic.cli.app import app
from laconic.errors import LaconicError
from laconic.planner.iteration_models import (
    MODELS,
    SPARSIFIER,
    IterationInputs,
    IterationTable,
    iteration_inputs,
    iteration_table,
)
from laconic.planner.sources import Subject
from laconic.planner.values import PlanError
from laconic.values.profile import CodecTimes, ModelTimes, Profile, Seconds, TensorTime

SIZES = (4_000_000, 500_000, 300_000, 200_000, 50_000, 10_000)
"""Elements in the order of backward: a large last layer, as convolutional networks have."""

CODEC = CodecTimes("topk+error_feedback", 1e-4, 2e-11, 1e-4, 2e-11)
RATES = (1e9, 1e10, 1e11)
BY_SERVERS, COMPRESSING = ("geryon", "tensorexpress", "mercury"), ("omgs_sgd", "compression_scheduler")


@cache
def inputs(servers: int = 4, rate: float = 1e10, codec: bool = True) -> IterationInputs:
    """Return six tensors that take 30 ms to compute, on four workers."""
    tensors = tuple(TensorTime(f"layer{i}", (n,), backward_seconds=3e-3) for i, n in enumerate(SIZES))
    times = ModelTimes(tensors, Seconds(9e-3), Seconds(18e-3), Seconds(3e-3))
    profile = Profile(times, codecs=(CODEC,) if codec else ())
    return IterationInputs(Subject("six layers", profile), 4, servers, rate, 5e-5)


@cache
def table(servers: int = 4, rate: float = 1e10, codec: bool = True) -> IterationTable:
    return iteration_table(inputs(servers, rate, codec))


def test_every_registered_function_of_schedules_is_run_by_a_command() -> None:
    known = {entry.target for entry in registry.entries("schedule") if entry.kind == "function"}
    assert known == set(MODELS), "give it a row in laconic.planner.iteration_models.MODELS: `laconic iteration` runs it"


def test_every_model_has_a_row_that_takes_no_less_than_computing() -> None:
    found = table()
    assert [registry.find(row.model).target for row in found.rows] == list(MODELS)
    assert found.setting.computing_seconds == pytest.approx(30e-3)
    for row in found.rows:
        assert not row.missing and row.detail and row.assumes == registry.find(row.model).summary
        assert row.seconds is not None and row.seconds >= 30e-3 * (1 - 1e-9), row


def test_r_is_the_ring_all_reduce_over_computing() -> None:
    setting = table().setting
    ring = 2 * 3 * 5e-5 + 2 * 3 / 4 * 4 * sum(SIZES) * 8 / 1e10
    assert setting.communication_seconds == pytest.approx(ring)
    assert setting.r == pytest.approx(ring / 30e-3)


@pytest.mark.parametrize("name", [*BY_SERVERS, "byteps"])
def test_priorities_are_never_slower_than_first_come_first_served(name: str) -> None:
    for servers, rate in ((1, 1e9), (2, 1e10), (4, 1e10), (4, 1e11)):
        found = MODELS[registry.find(name).target](inputs(servers, rate))
        assert found.seconds <= found.baseline_seconds * (1 + 1e-9), (servers, rate, found)


@pytest.mark.parametrize("name", ["general_scheduler", "compression_scheduler", "auto_architecture"])
def test_a_search_is_never_slower_than_its_baseline(name: str) -> None:
    for rate in RATES:
        row = next(row for row in table(rate=rate).rows if row.model == name)
        assert row.speed_up is not None and row.speed_up >= 1 / 1.005, row  # a simpler method may take half a percent


def test_more_bandwidth_is_never_slower() -> None:
    """All but OMGS-SGD: its greedy rule does not count decoding, so that fewer merges may take a little longer."""
    slow, middle, fast = ([row for row in table(rate=rate).rows if row.model != "omgs_sgd"] for rate in RATES)
    for a, b, c in zip(slow, middle, fast, strict=True):
        assert a.seconds is not None and b.seconds is not None and c.seconds is not None
        assert a.seconds >= b.seconds >= c.seconds, (a, b, c)


def test_models_without_their_inputs_say_what_they_need() -> None:
    rows = {row.model: row for row in table(servers=0, codec=False).rows}
    left_out = {name for name, row in rows.items() if row.missing}
    assert left_out == {*BY_SERVERS, *COMPRESSING}
    assert all(rows[name].seconds is None and rows[name].speed_up is None for name in left_out)
    assert "--servers" in rows["geryon"].missing
    assert SPARSIFIER in rows["omgs_sgd"].missing and "--gpu" in rows["omgs_sgd"].missing


def test_a_table_survives_json() -> None:
    for found in (table(), table(servers=0, codec=False)):
        assert IterationTable.from_json(found.to_json()) == found
    for text in ("[]", "{}", "no JSON", '{"laconic_iteration": 0}'):
        with pytest.raises(PlanError, match="laconic iteration --json"):
            IterationTable.from_json(text)


@pytest.mark.parametrize(
    ("subject", "given", "message"),
    [
        ("resnet51", {"gpu": "v100"}, "ResNet-50"),
        ("resnet50", {}, "add --gpu"),
        ("train.py", {}, "laconic profile --out"),
        ("resnet50", {"gpu": "v100", "network": "fast"}, "no rate"),
        ("resnet50", {"gpu": "v100", "network": "0gbit"}, "positive rate"),
        ("resnet50", {"gpu": "v100", "workers": 0}, "at least one worker"),
    ],
)
def test_what_cannot_be_priced_is_refused_with_a_sentence(subject: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(LaconicError, match=message):
        iteration_inputs(subject, **given)  # type: ignore[arg-type]


@pytest.mark.long
def test_the_command_prints_the_setting_and_every_model(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(inputs().subject.profile.to_json())
    options = ["iteration", str(path), "--workers", "4", "--network", "10gbit"]
    shown = CliRunner().invoke(app, options)
    assert shown.exit_code == 0, shown.output
    assert "4 workers and 4 servers" in shown.output and "r = 0." in shown.output
    assert all(registry.entry_of(model).name in shown.output for model in MODELS)
    without = CliRunner().invoke(app, [*options, "--servers", "0"])
    assert "left out  geryon: " in without.output
    written = CliRunner().invoke(app, [*options, "--json"])
    assert [row.seconds for row in IterationTable.from_json(written.output).rows] == [r.seconds for r in table().rows]


def test_the_command_refuses_an_unknown_model() -> None:
    refused = CliRunner().invoke(app, ["iteration", "resnet51", "--gpu", "v100"])
    assert isinstance(refused.exception, LaconicError) and "ResNet-50" in str(refused.exception)


@pytest.mark.long
def test_show_names_the_command() -> None:
    for model in MODELS:
        assert "run it: laconic iteration " in CliRunner().invoke(app, ["show", registry.entry_of(model).name]).output
    assert "run it" not in CliRunner().invoke(app, ["show", "lars"]).output
