"""How accurate predictions have been: the errors on our own real runs, by kind of strategy."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

import numpy as np

from laconic.experiments.rivals.base import Rival
from laconic.experiments.rivals.text import read
from laconic.planner.deployment import Deployment
from laconic.planner.guarantee import is_sixteen_bits
from laconic.strategy import Phases, Sentence, Strategy

_UNKNOWN = (0.8, 1.25)  # where nothing was measured
_LEAST = 8  # runs of a kind, below which the errors of all kinds are used


def error_range(strategy: Strategy, deployment: Deployment) -> tuple[float, float]:
    """Return the range of a step's time as factors of its prediction.

    Nine in ten of our measured runs lay within it; where the profile's computing times spread more, it is widened.
    """
    low, high = step_errors(strategy)
    model = deployment.profile.model
    parts = [model.forward, model.backward, model.step]
    whole = sum(part.median for part in parts)
    if whole:
        least, most = (sum(getattr(p, end) or p.median for p in parts) / whole for end in ("low", "high"))
        low, high = min(low, least), max(high, most)
    return low, high


def step_errors(strategy: Strategy) -> tuple[float, float]:
    """Return the same range without the spread of computing, which two strategies on the same workers share."""
    return _errors(kind_of(strategy))


def kind_of(chosen: Strategy) -> str:
    """Return the kind of a strategy; strategies of one kind are predicted about equally well.
    Phases are of the kind that most of the run is."""
    if isinstance(chosen, Phases):
        return kind_of(chosen.last)
    if not isinstance(chosen, Sentence):
        return "tiers"
    if chosen.sync.name != "bsp":
        return "periodic"
    if chosen.schedule.make().finishes_late:
        return "deferred"
    first = chosen.compression[:1]
    return "uncompressed" if first[0].name == "none" or is_sixteen_bits(first) else "compressed"


@cache
def _errors(kind: str) -> tuple[float, float]:
    every = _ratios()
    own = [ratio for of, ratio in every if of == kind]
    ratios = own if len(own) >= _LEAST else [ratio for _, ratio in every]
    if len(ratios) < _LEAST:
        return _UNKNOWN
    low, high = np.quantile(ratios, [0.05, 0.95])
    return min(1.0, float(low)), max(1.0, float(high))


@cache
def _ratios() -> list[tuple[str, float]]:
    """Return (kind, measured time over predicted time) for each row of the table of `bench/plan.py`, if any."""
    path = files("laconic.planner") / "measured" / "steps.csv"
    if not path.is_file():
        return []
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return [(_kind(row["strategy"]), float(row["measured_seconds"]) / float(row["predicted_seconds"])) for row in rows]


def _kind(text: str) -> str:
    method = read(text)
    return kind_of(Strategy.parse(method.sentence or text) if isinstance(method, Rival) else method)
