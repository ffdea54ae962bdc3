"""NCCL's measured times against predictions of left-out sizes and GPU counts from the rest of a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from laconic.planner.validation.errors import Errors
from laconic.profile.collectives import CollectiveTimes, Curve
from laconic.profile.nccl import FILE, read

LEFT_OUT = 4  # GPUs
BEYOND = 8

Pairs = Iterator[tuple[float, float]]


@dataclass(frozen=True)
class SystemErrors:
    """The errors on one system's table; `plain` errors are those of straight lines between logarithms."""

    system: str
    one_size: Errors | None  # each interior size left out in turn
    one_size_plain: Errors | None
    every_second: Errors | None  # every second size left out at once, once the odd and once the even ones
    every_second_plain: Errors | None
    largest_size: Errors | None
    count: Errors | None  # four GPUs left out
    count_from: str
    count_alone: Errors | None  # the same without another system's table
    beyond: Errors | None  # eight GPUs from fewer, without another system's table

    @property
    def ratio(self) -> float:
        """The ratio of our mean error to the plain one, the worse of both ways to leave sizes out."""
        pairs = ((self.one_size, self.one_size_plain), (self.every_second, self.every_second_plain))
        return max((a.mean / b.mean for a, b in pairs if a and b and b.mean), default=math.nan)


def validate(data: Path) -> list[SystemErrors]:
    """Return the errors for every system in the file of the folder of published measurements."""
    return [of_system(table) for table in read(data / FILE).values()]


def of_system(table: CollectiveTimes) -> SystemErrors:
    """Return the errors on one system's table, with each part left out in turn."""
    fewer = table.without_count(LEFT_OUT)
    return SystemErrors(
        table.system,
        Errors.of(_sizes(table, _singly, Curve.seconds)),
        Errors.of(_sizes(table, _singly, plain)),
        Errors.of(_sizes(table, _alternately, Curve.seconds)),
        Errors.of(_sizes(table, _alternately, plain)),
        Errors.of(_sizes(table, lambda sizes: [sizes[-1:]], Curve.seconds)),
        Errors.of(_count(fewer, table, LEFT_OUT)),
        _predicted_from(fewer),
        Errors.of(_count(replace(fewer, similar_system=None), table, LEFT_OUT)),
        Errors.of(_count(replace(table.without_count(BEYOND), similar_system=None), table, BEYOND)),
    )


def plain(curve: Curve, nbytes: float) -> float:
    """Return the time on a straight line between the logarithms of the two neighbouring sizes that were measured."""
    (n, s), (m, t) = next(
        (low, high) for low, high in zip(curve.points, curve.points[1:], strict=False) if nbytes <= high[0]
    )
    return math.exp(math.log(s) + math.log(t / s) * math.log(nbytes / n) / math.log(m / n))


def _singly(sizes: list[int]) -> list[list[int]]:
    return [[size] for size in sizes[1:-1]]


def _alternately(sizes: list[int]) -> list[list[int]]:
    return [sizes[1:-1:2], sizes[2:-1:2]]


def _sizes(
    table: CollectiveTimes, ways: Callable[[list[int]], list[list[int]]], predict: Callable[[Curve, float], float]
) -> Pairs:
    for counts in table.curves.values():
        for curve in counts.values():
            measured = dict(curve.points)
            for dropped in ways(list(measured)):
                if dropped and len(measured) > len(dropped) + 1:
                    rest = curve.without(dropped)
                    yield from ((predict(rest, nbytes), measured[nbytes]) for nbytes in dropped)


def _count(rest: CollectiveTimes, table: CollectiveTimes, gpus: int) -> Pairs:
    for (operation, dtype), counts in table.curves.items():
        if gpus in counts and (operation, dtype) in rest.curves:
            for nbytes, measured in counts[gpus].points:
                yield rest.seconds(operation, nbytes, gpus, dtype), measured


def _predicted_from(rest: CollectiveTimes) -> str:
    counts = sorted({gpus for counts in rest.curves.values() for gpus in counts})
    between = bool(counts) and counts[0] < LEFT_OUT < counts[-1]
    counted_gpus = " and ".join(map(str, counts))
    return (
        counted_gpus
        if between or rest.similar_system is None
        else f"{counted_gpus}, growth of {rest.similar_system.system}"
    )
