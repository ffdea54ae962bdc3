"""The ladder's tables: which runs they need, what would void them, and what a run evaluates."""

from __future__ import annotations

import json
import math
import tomllib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bench.rungs.choosing import TUNING_SEED, Method, Rung, needed, read
from bench.rungs.guards import on_other_data, refuse
from bench.rungs.noise import NoiseScale
from bench.rungs.run import Run, at_length, share_of_rate
from bench.rungs.tasks import OF_TEXT, refuse_repetition
from bench.rungs.training import train
from torch import Tensor, nn
from torch.nn import functional

from laconic.errors import LaconicError
from laconic.planner.runs import read as read_runs

RUNG = Rung("tiny", "line", 1, steps=60, tuning=0.5, seeds=(1, 2), fewer=(0.5,), reports=2)
METHODS = [Method("bsp", rates=(0.1, 0.2)), Method("local(10)", rates=(0.1, 0.2, 0.4))]


def answered(run: Run, loss: float | None) -> dict[str, Any]:
    return {name: getattr(run, name) for name in (*Run.__dataclass_fields__, "sentence")} | {"loss": loss}


class TestChoosing:
    def test_rates_come_first_and_on_a_seed_that_is_not_reported(self) -> None:
        runs = list(needed(RUNG, METHODS, []))
        assert [(run.purpose, run.seed, run.steps) for run in runs] == [("rate", TUNING_SEED, 30)] * 5
        assert TUNING_SEED not in RUNG.seeds

    def test_what_is_reported_has_the_best_rate_and_full_length(self) -> None:
        losses = {("bsp", 0.1): 2.0, ("bsp", 0.2): None, ("local(10)", 0.1): 3.0, ("local(10)", 0.2): 1.0}
        rows = [answered(run, losses.get((run.method, run.lr), 5.0)) for run in needed(RUNG, METHODS, [])]
        runs = list(needed(RUNG, METHODS, rows))
        assert {(run.method, run.lr) for run in runs} == {("bsp", 0.1), ("local(10)", 0.2)}
        assert [(run.purpose, run.seed, run.steps, run.method) for run in runs] == [
            ("report", 1, 60, "bsp"),
            ("report", 1, 60, "local(10)"),
            ("report", 2, 60, "bsp"),
            ("report", 2, 60, "local(10)"),
            ("fewer", 1, 30, "bsp"),
            ("fewer", 2, 30, "bsp"),
        ]

    def test_a_method_is_reported_before_the_next_one_is_tuned(self) -> None:
        rows = [answered(run, 1.0) for run in needed(RUNG, METHODS[:1], [])]
        assert [(run.purpose, run.method) for run in needed(RUNG, METHODS, rows)][:3] == [
            ("report", "bsp"),
            ("rate", "local(10)"),
            ("rate", "local(10)"),
        ]

    def test_seeds_of_other_data_stay_as_they_are_and_the_next_one_has_its_own_baseline(self) -> None:
        rung = replace(RUNG, seeds=(1, 2, 3))
        rows = [answered(run, 1.0) | {"data": "old"} for run in needed(rung, METHODS, [])]
        rows += [
            answered(run, 1.0) | {"data": "old"}
            for run in needed(rung, METHODS, rows)
            if run.method == "bsp" and run.purpose == "report" and run.seed == 1
        ]
        runs = [(run.purpose, run.seed, run.method) for run in needed(rung, METHODS, rows, "new")]
        assert runs == [
            ("report", 2, "bsp"),
            ("report", 2, "local(10)"),
            ("report", 3, "bsp"),
            ("report", 3, "local(10)"),
            ("fewer", 2, "bsp"),
            ("fewer", 3, "bsp"),
        ]
        rows += [answered(run, 1.0) | {"data": "new"} for run in needed(rung, METHODS, rows, "new") if run.seed == 2]
        runs = [(run.purpose, run.seed, run.method) for run in needed(rung, METHODS, rows, "new")]
        assert ("report", 3, "local(10)") in runs and runs[0] == ("report", 3, "bsp")

    def test_a_run_whose_row_is_there_is_not_made_again(self) -> None:
        rows: list[dict[str, Any]] = []
        while runs := list(needed(RUNG, METHODS, rows)):
            rows.append(answered(runs[0], 1.0))
        assert len(rows) == 5 + 6

    def test_every_method_of_the_ladder_is_understood_and_fair(self) -> None:
        bench = Path(__file__).parents[2] / "bench"
        table, families = (tomllib.loads((bench / name).read_text()) for name in ("rungs.toml", "compressors.toml"))
        for name in table.keys() - {"rates", "method"}:
            rung, methods = read(table, name, families)
            assert len(methods) > (50 if rung.compressors else 1)
            for run in needed(rung, methods, []):
                refuse(run)
                assert run.skewed == (name == "skewed")


class TestGuards:
    def test_steps_outside_whole_periods_are_refused(self) -> None:
        def run(method: str, steps: int) -> Run:
            return Run("t", "r", 2, "adamw", method, 0.1, 1, steps, steps, "report")

        refuse(run("diloco(30)", 60))
        refuse(run("bsp until step {10%}, then diloco(9)", 60))
        with pytest.raises(LaconicError, match="last 10 of 70 steps"):
            refuse(run("diloco(30)", 70))
        with pytest.raises(LaconicError, match="last 4 of 64 steps"):
            refuse(run("accumulate(10)", 64))

    def test_error_memory_ahead_of_adam_needs_a_dense_start(self) -> None:
        def run(method: str, optimizer: str) -> Run:
            return Run("t", "r", 2, optimizer, method, 0.1, 1, 60, 60, "report")

        with pytest.raises(LaconicError, match="begin dense"):
            refuse(run("bsp / topk(0.01)+ef", "adamw"))
        refuse(run("bsp / topk(0.01)+ef", "sgd"))
        refuse(run("bsp until step {10%}, then bsp / topk(0.01)+ef", "adamw"))
        refuse(run("diloco(30) / two_bit+ef", "adamw"))  # it remembers errors of displacements

    def test_a_seed_goes_on_with_the_data_that_it_began_with(self) -> None:
        rows = [{"seed": 1, "purpose": "report", "data": "a"}, {"seed": 2, "purpose": "report", "data": "b"}]
        assert not on_other_data(1, "a", [*rows, {"seed": 1, "purpose": "rate", "data": "b"}])
        assert on_other_data(1, "b", rows) and not on_other_data(3, "b", rows)
        assert on_other_data(1, "a", [{"seed": 1, "purpose": "fewer"}])

    def test_a_text_is_not_passed_over_more_often_than_twice(self, tmp_path: Path) -> None:
        text = tmp_path / "text.xz"
        text.touch()
        text.with_suffix(".json").write_text(json.dumps({"training_bytes": 4_000_000}))
        rung = replace(RUNG, task="bytes", rows=5, context=100, steps=2000)
        refuse_repetition(rung, text)
        with pytest.raises(LaconicError, match=r"2\.2 passes over the 4,000,000 .* `--megabytes 5` or more"):
            refuse_repetition(replace(rung, steps=2200), text)
        pairs = tmp_path / "text.npz"
        np.savez(pairs, training=np.zeros(1_000_000, np.uint16), lengths=np.array([4]))
        with pytest.raises(LaconicError, match=r"8 passes over the 1,000,000 .* `--megabytes 17` .*byte_pairs"):
            refuse_repetition(replace(rung, task="bpe"), pairs)

    def test_images_may_be_passed_over_as_often_as_one_likes(self) -> None:
        table = tomllib.loads((Path(__file__).parents[2] / "bench" / "rungs.toml").read_text())
        rungs = [read(table, name, defaultdict(dict))[0] for name in table.keys() - {"rates", "method"}]
        others = [rung for rung in rungs if rung.task not in OF_TEXT]
        for rung in others:
            refuse_repetition(replace(rung, steps=10**9), None)
        assert others

    def test_phases_are_shares_of_the_run_and_rows_are_compared_at_full_length(self) -> None:
        run = Run("t", "r", 2, "adamw", "bsp until step {10%}, then local(3)", 0.1, 1, 30, 300, "rate")
        assert "until step 3," in run.trained and "until step 30," in run.sentence
        assert at_length("bsp until step {15%}, then diloco(30)", 200) == "bsp until step 30, then diloco(30)"

    def test_the_rate_rises_once_and_falls_once_over_the_whole_run(self) -> None:
        shares = [share_of_rate(step, 200) for step in range(200)]
        assert shares[9] == 1 and shares[:10] == sorted(shares[:10])
        assert shares[9:] == sorted(shares[9:], reverse=True)
        assert math.isclose(shares[-1], 0.1, abs_tol=1e-3)


class Line:
    """Fit a line to points that differ from worker to worker; what was evaluated is kept."""

    name, kind, samples, size, data, device = "line", "classifier", 4, 96, "", torch.device("cpu")

    def __init__(self) -> None:
        self.evaluated: list[Tensor] = []

    def build(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Linear(3, 2)

    def batch(self, seed: int, step: int, worker: int) -> tuple[Tensor, ...]:
        draw = torch.Generator().manual_seed(100 * step + worker)
        x = torch.randn(4, 3, generator=draw)
        return x, x[:, :2] * (1 + worker)

    def loss(self, model: Callable[..., Tensor], *batch: Tensor) -> Tensor:
        return functional.mse_loss(model(batch[0]), batch[1])

    def evaluate(self, model: Any) -> dict[str, float]:
        self.evaluated.append(model.weight.detach().clone())
        return {"loss": float(self.evaluated[-1].norm()), "size": 2.0}


def run(method: str, steps: int = 20, lr: float = 0.02, workers: int = 3) -> Run:
    return Run("line", "tiny", workers, "sgd", method, lr, 1, steps, steps, "report")


class TestTraining:
    def test_what_is_evaluated_is_what_would_be_shipped(self) -> None:
        """At the end of a one-shot averaging no worker's own model is evaluated, but their mean."""
        task = Line()
        row = train(run("one_shot_averaging"), task)

        def alone(worker: int) -> Tensor:
            own = Line()
            own.batch = lambda seed, step, _: Line.batch(own, seed, step, worker)  # type: ignore[method-assign]
            train(run("bsp", workers=1), own)
            return own.evaluated[-1]

        kept = [alone(worker) for worker in range(3)]
        torch.testing.assert_close(task.evaluated[-1], torch.stack(kept).mean(0), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(task.evaluated[-1], kept[0], rtol=1e-2)
        assert row["loss"] == pytest.approx(float(task.evaluated[-1].norm()), abs=1e-4)
        assert row["metrics"] == {"size": 2.0} and len(row["curve"]) == 10 and row["parameters"] == 8

    def test_rows_say_how_often_the_data_were_seen(self) -> None:
        fresh = Line()
        fresh.size = None  # type: ignore[assignment]
        assert train(run("bsp"), Line())["epochs"] == 20 * 4 * 3 / 96
        assert train(run("bsp"), fresh)["epochs"] is None

    def test_a_baseline_says_its_noise_scale_and_trains_as_without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        watched, other = train(run("bsp"), Line()), train(run("bsp / cast_fp16"), Line())
        assert [step for step, _ in watched["noise_curve"]] == [2 * k for k in range(1, 10)]
        assert watched["noise_scale"] is None or watched["noise_scale"] > 0
        assert "noise_scale" not in other and "noise_scale" not in train(run("bsp", workers=1), Line())
        monkeypatch.setattr(NoiseScale, "at", lambda *_: None)
        monkeypatch.setattr(NoiseScale, "fields", {})
        assert train(run("bsp"), Line())["curve"] == watched["curve"]

    def test_displacements_travel_in_32_bits(self) -> None:
        def sent(rounds: int) -> int:
            return int(train(run("diloco(10)", steps=10 * rounds), Line())["bytes"])

        whole = 8 * 4 * 2 * (3 - 1) / 3  # of an all-reduce of 8 numbers of 4 bytes among 3
        assert sent(4) - sent(2) == pytest.approx(2 * whole, abs=2)

    def test_computing_together_changes_nothing_but_time(self) -> None:
        together, alone = (train(run("diloco(10)"), Line(), together=way) for way in (True, False))
        assert together["loss"] == pytest.approx(alone["loss"], rel=1e-4) and together["bytes"] == alone["bytes"]

    def test_a_run_that_diverges_leaves_a_row_that_says_so(self) -> None:
        class Diverging(Line):
            def evaluate(self, model: Any) -> dict[str, float]:
                return {"loss": math.nan if len(self.evaluated) > 2 else super().evaluate(model)["loss"]}

        row = train(run("bsp"), Diverging())
        assert row["diverged"] and row["loss"] is None and "bytes" not in row and len(row["curve"]) == 3

    def test_a_refused_run_is_not_trained(self) -> None:
        with pytest.raises(LaconicError, match="no whole period"):
            train(run("diloco(30)", steps=20), Line())


def test_rows_are_read_as_checked_values(tmp_path: Path) -> None:
    row = train(run("bsp"), Line()) | {"packed": 1, "device": "CPU"}
    (tmp_path / "line-tiny.jsonl").write_text(json.dumps(row) + "\n")
    (found,) = read_runs(tmp_path)
    assert found.loss == row["loss"] and found.sentence == "bsp / none / allreduce"
