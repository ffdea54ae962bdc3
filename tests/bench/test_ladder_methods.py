"""Every method of the ladder trains: a rehearsal, on tiny models, of what the tables ask of a GPU.

A method that raises an error costs the time in which a GPU was found, and one that ends in numbers that are none costs
the runs that choose its rate: both are seen here.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.rungs import tasks, training
from bench.rungs.choosing import Method, Rung, needed, read
from bench.rungs.guards import refuse
from bench.rungs.run import strategy_at
from bench.tasks import cifar
from bench.tasks.recommender import Recommender
from examples.recommender import GROUPS

from laconic.frontier.methods import steps_outside
from tests.test_examples import images

BENCH = Path(__file__).parents[2] / "bench"
PARTS = {"breadth": 4, "cifar": 4, "recommender": 2, "skewed": 1, "confirm": 1, "bpe": 1}
"""The rungs that are rehearsed, and in how many tests."""
LATER = {"alq(": 10, "amq(": 10, "lgc(": 40, "ramp(": 50, "warm_up(": 30}
"""How many steps it takes until such a method has done all that it does, where its own numbers are of steps."""
LEAST = 6
"""Steps in which a tenth is one."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The data of each task, in a size that takes a blink."""
    folder = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(0)
    raw, text, pairs = Path(__file__).read_bytes() * 8, folder / "text.xz", folder / "text.bpe.npz"
    text.write_bytes(lzma.compress(raw))
    facts = {"training_bytes": len(raw) - 200, "sha256": hashlib.sha256(raw).hexdigest()}
    text.with_suffix(".json").write_text(json.dumps(facts))
    tokens = {n: draw.integers(300, size=k, dtype=np.uint16) for n, k in (("training", 20_000), ("validation", 100))}
    np.savez(pairs, lengths=1 + draw.integers(4, size=300), **tokens)
    return {"bytes": text, "bpe": pairs, "cifar": images(folder / "few.npz")}


def tiny(name: str) -> Rung:
    """Return a rung with a tiny model."""
    rung, _ = of_ladder(name)
    model = {"layers": 1} if rung.task in ("cifar", "recommender") else {"layers": 1, "width": 64, "context": 8}
    return replace(rung, rows=1, seeds=(1,), reports=1, fewer=(), **model)


def few(sentence: str) -> int:
    """Return a number of steps in which a method has a whole period and does all that it does."""
    fewest = max([LEAST, *(n for word, n in LATER.items() if word in sentence)])
    return next(n for n in range(fewest, 200) if not steps_outside(strategy_at(sentence, n), n))


def of_ladder(name: str) -> tuple[Rung, list[Method]]:
    table, families = (tomllib.loads((BENCH / file).read_text()) for file in ("rungs.toml", "compressors.toml"))
    return read(table, name, families)


def rehearsed(name: str, method: Method, data: Path | None) -> str:
    """Train a method as the ladder does first, to choose a rate, but for a few steps, and see that the row asks for a
    report that is fair; return what went wrong, in words."""
    rung, method = tiny(name), replace(method, rates=method.rates[:1])
    (run,) = needed(rung, [method], [])
    try:
        task = tasks.task_of(rung, data, torch.device("cpu"), method.workers)
        row = training.train(replace(run, steps=few(method.sentence)), task)
        report = next(needed(rung, [method], [row | {"steps": run.steps}]))
        refuse(report)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    assert (run.purpose, report.purpose, report.steps <= rung.steps) == ("rate", "report", True)
    return "" if row["loss"] is not None else f"its loss is no number, at a rate of {run.lr:g}"


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "part"), [pytest.param(n, k, id=f"{n} {k}") for n, parts in PARTS.items() for k in range(parts)]
)
def test_every_method_of_a_rung_trains(
    name: str, part: int, texts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar, "RUNS", tmp_path)
    monkeypatch.setattr(training, "POINTS", 2)  # the model is looked at once on the way
    monkeypatch.setattr(tasks, "Recommender", partial(Recommender, users=5 * GROUPS, items=150, held_out=500))
    rung, methods = of_ladder(name)
    assert methods
    failed = {
        f"{method.optimizer}: {method.sentence}": why
        for method in methods[part :: PARTS[name]]
        if (why := rehearsed(name, method, texts.get(rung.task)))
    }
    assert not failed, "\n".join(f"{method}: {why}" for method, why in failed.items())
