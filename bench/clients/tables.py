"""The tables of the rows that there are: accuracy beside FedAvg, and what a target takes, in bytes and virtual time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.clients.choosing import best_of, finals_of
from bench.clients.methods import SILOS, tiers

Row = Mapping[str, Any]
OF_FEDAVG = 0.95
"""The target: this share of what FedAvg reaches in the same setting."""
_T = (math.nan, 12.706, 4.303, 3.182, 2.776)  # two-sided 95 % quantiles of Student's t, by degrees of freedom
HEADINGS = (
    "method",
    "rate",
    "knob",
    "accuracy, %",
    "minus FedAvg, points",
    "rounds",
    "hours",
    "MB up",
    "MB down",
    "whole run, MB up",
    "down",
)


def tables(rows: Iterable[Row]) -> Iterator[str]:
    """Yield a title and a table for each setting, and then what an error memory is worth."""
    rows, methods = list(rows), [method for tier in tiers() for method in tier]
    edges: dict[tuple[str, float], list[str]] = {}
    early: dict[tuple[str, float], list[str]] = {}
    kept: list[Row] = []
    for method in methods:
        place = method.population, method.share
        mine = _of(rows, method.name, place)
        if tried := {row["rate"] for row in mine if row["purpose"] == "tuning"}:
            rate, knob = best_of(mine, method)
            reports = [r for r in mine if r["purpose"] == "report" and (r["rate"], r["knob"]) == (rate, knob)]
            kept += reports
            if reports and rate in (min(tried), max(tried)):
                edges.setdefault(place, []).append(f"`{method.name}`")
            if reports and not finals_of(mine, method):
                early.setdefault(place, []).append(f"`{method.name}`")
    places = dict.fromkeys((m.population, m.share) for m in methods)
    for place in places:
        mine = [row for row in kept if (row["population"], row["share"]) == place]
        if mine:
            yield from _setting(place, mine)
            if place in edges:
                yield f"The best rate is at the edge of those tried: {', '.join(edges[place])}."
            if place in early:
                yield f"The rate was chosen by short runs alone: {', '.join(early[place])}."
    pairs = [(place, _paired(kept, place, "topk+ef", "topk")) for place in places]
    if found := [(f"{part}, {_taking(part, share)}", _told(pairs)) for (part, share), pairs in pairs if pairs]:
        yield "What an error memory adds to `topk(0.01)`:"
        yield grid(("setting", "with `+ef` minus without, points"), found)


def _setting(place: tuple[str, float], rows: Sequence[Row]) -> Iterator[str]:
    base = [row["accuracy"] for row in rows if row["method"] == "fedavg"]
    target = OF_FEDAVG * statistics.mean(base) if base else math.inf
    clients, rounds = rows[0]["clients"], rows[0]["rounds"]
    aim = f"; rounds, hours and MB to {100 * target:.1f} %" if base else ""
    yield f"**{_title(place[0])}, {clients} clients, {_taking(*place)}, {rounds} rounds**{aim}:"
    names = dict.fromkeys(m.name for tier in tiers() for m in tier if (m.population, m.share) == place)
    yield grid(HEADINGS, [_line(name, place, rows, target) for name in names if _of(rows, name)])


def _line(name: str, place: tuple[str, float], rows: Sequence[Row], target: float) -> list[str]:
    mine = _of(rows, name)
    accuracies = [100 * row["accuracy"] for row in mine]
    reached = [point for row in mine if (point := first(row["curve"], target)) is not None]
    few = "" if len(reached) == len(mine) else f" ({len(reached)} of {len(mine)} seeds)"
    ends = [row["curve"][-1] for row in mine if row["curve"]]

    def mean(points: Sequence[Sequence[float]], column: int, scale: float = 1.0) -> str:
        return f"{statistics.mean(point[column] for point in points) / scale:.4g}" if points else "–"

    return [
        f"`{name}`",
        f"{mine[0]['rate']:g}",
        "" if mine[0]["knob"] is None else f"{mine[0]['knob']:g}",
        f"{statistics.mean(accuracies):.1f} ({', '.join(f'{x:.1f}' for x in accuracies)})",
        "" if name == "fedavg" else _told(_paired(rows, place, name, "fedavg")),
        mean(reached, 0) + few,
        mean(reached, 2, 3600),
        mean(reached, 3, 1e6),
        mean(reached, 4, 1e6),
        mean(ends, 3, 1e6),
        mean(ends, 4, 1e6),
    ]


def first(curve: Sequence[Sequence[float]], target: float) -> Sequence[float] | None:
    """Return the first point of a curve that has reached a target: round, accuracy, seconds, bytes up and down."""
    return next((point for point in curve if point[1] >= target), None)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the mean of paired differences, and half the width of its 95 % interval: infinite for a single pair."""
    if len(differences) < 2:
        return differences[0], math.inf
    half = _T[len(differences) - 1] * statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.mean(differences), half


def _paired(rows: Sequence[Row], place: tuple[str, float], name: str, other: str) -> list[float]:
    """Return by how many points a method is above another, for each seed that both have."""
    mine, theirs = ({row["seed"]: row for row in _of(rows, n, place)} for n in (name, other))
    return [100 * (mine[seed]["accuracy"] - theirs[seed]["accuracy"]) for seed in sorted(mine.keys() & theirs.keys())]


def _told(differences: Sequence[float]) -> str:
    """Return a difference with its interval, and bold where that does not hold zero."""
    if not differences:
        return "–"
    mean, half = interval(differences)
    if math.isinf(half):
        return f"{mean:+.1f} (1 seed)"
    told = f"{mean:+.1f} ± {half:.1f}"
    return f"**{told}**" if abs(mean) > half else told


def _of(rows: Sequence[Row], name: str, place: tuple[str, float] | None = None) -> list[Row]:
    found = (row for row in rows if row["method"] == name)
    if place is not None:
        found = (row for row in found if (row["population"], row["share"]) == place)
    return sorted(found, key=lambda row: row["seed"])


def _title(population: str) -> str:
    if population == SILOS:
        return "Silos of a fifth of the images, Dirichlet 0.5"
    return population[0].upper() + population[1:] + (" a client" if population == "two labels" else "")


def _taking(population: str, share: float) -> str:
    return "all taking part" if population == SILOS else f"{100 * share:g} % taking part"


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
