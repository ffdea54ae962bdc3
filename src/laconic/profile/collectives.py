"""Times of collectives inside a host: measured tables, and interpolation for other sizes and numbers of GPUs.

A time is a latency and a time for bytes. Between neighbouring sizes it is a straight line (latency α and seconds per
byte β), so that a change of protocol stays where it was measured. With the number of GPUs a ring's latency grows as its
steps, its time for bytes as the bus factor.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from laconic.values.profile import ProfileError

_FLAT_SIZES, _FLAT = 5, 1.25  # a latency is the median of the smallest sizes that take about as long as the first
_LARGE_SIZES = 5  # that show how bandwidth changes with the number of GPUs
_LEAST = 0.005  # of a latency: the least that bytes take, so that it has a logarithm
_NCCL_HOP = 0.6 / 7.2  # of a two-GPU ring's latency, a hop over NVLink in NCCL's own model (tuning.cc: 6.6 and 0.6 µs)
_STEEPEST = 2.0  # power of the number of GPUs with which time for the same bytes on the bus may grow
_SIMILAR = 0.1  # mean relative difference up to which two systems count as the same hardware

WIDTHS = {"int8": 1, "uint8": 1, "half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4, "float64": 8}
_NAMES = {"all_to_all": "alltoall"}


def bus_factor(operation: str, gpus: int) -> float:
    """Return the share of the whole buffer's bytes that pass each GPU's link (as nccl-tests count them)."""
    return (2 if operation == "all_reduce" else 1) * (gpus - 1) / gpus


def steps(operation: str, gpus: int) -> int:
    """Return the number of sequential hops of a collective on a ring."""
    return (2 if operation == "all_reduce" else 1) * (gpus - 1)


@dataclass(frozen=True)
class Curve:
    """The measured seconds of one operation on a fixed number of GPUs, by bytes of the whole buffer."""

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if not self.points or any(n <= 0 or not 0 < s < math.inf for n, s in self.points):
            raise ProfileError(f"a collective's times are positive, for at least one positive size: {self.points}")
        if any(n >= m for (n, _), (m, _) in zip(self.points, self.points[1:], strict=False)):
            raise ProfileError("a collective's sizes are listed once, from the smallest on: use Curve.of")

    @classmethod
    def of(cls, samples: Iterable[tuple[int, float]]) -> Curve:
        """Return the curve of the median of each size's samples."""
        by_size: dict[int, list[float]] = {}
        for nbytes, seconds in samples:
            by_size.setdefault(nbytes, []).append(seconds)
        return cls(tuple((nbytes, statistics.median(by_size[nbytes])) for nbytes in sorted(by_size)))

    @cached_property
    def lowest(self) -> tuple[float, ...]:
        """The seconds of each size without spikes: no message takes longer than a larger one, as it could be padded."""
        found, least = [], math.inf
        for _, seconds in reversed(self.points):
            least = min(least, seconds)
            found.append(least)
        return tuple(reversed(found))

    @cached_property
    def latency_seconds(self) -> float:
        """The median time of the smallest sizes, as far as these take about as long as the first."""
        first = self.lowest[0]
        return statistics.median(s for s in self.lowest[:_FLAT_SIZES] if s <= _FLAT * first)

    def seconds(self, nbytes: float) -> float:
        """Return the time of a size on the line between its neighbours.

        Below the smallest size it is that size's time; beyond the largest the last line continues, no steeper than one
        through the origin.
        """
        sizes = [n for n, _ in self.points]
        k = bisect_left(sizes, nbytes)
        if k == 0:
            return self.lowest[0]
        if k < len(sizes):
            share = (nbytes - sizes[k - 1]) / (sizes[k] - sizes[k - 1])
            return self.lowest[k - 1] + share * (self.lowest[k] - self.lowest[k - 1])
        slope = self.lowest[-1] / sizes[-1]
        if len(sizes) > 1:
            slope = min(slope, (self.lowest[-1] - self.lowest[-2]) / (sizes[-1] - sizes[-2]))
        return self.lowest[-1] + slope * (nbytes - sizes[-1])

    def without(self, dropped: Iterable[int]) -> Curve:
        """Return the curve as if these sizes had not been measured."""
        gone = set(dropped)
        return Curve(tuple(point for point in self.points if point[0] not in gone))


Counts = Mapping[int, Curve]
"""Curves by number of GPUs."""


@dataclass(frozen=True)
class CollectiveTimes:
    """One system's curves by (operation, dtype) and number of GPUs.

    `similar_system` is a table of equivalent hardware that was measured with other numbers of GPUs.
    """

    system: str
    curves: Mapping[tuple[str, str], Counts]
    similar_system: CollectiveTimes | None = None

    @property
    def operations(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(operation for operation, _ in self.curves))

    def seconds(self, operation: str, nbytes: float, gpus: int, dtype: str = "half") -> float:
        """Return the seconds of a collective over a buffer (all-gather: gathered; reduce-scatter: before scattering).

        A number of GPUs that was not measured is interpolated, or extrapolated: then latency continues along its line,
        and the time of a byte on the bus stays constant, or grows as the same power of the count where it has grown.
        Nothing is known of other hosts: beyond one host's GPUs their links are taken to be the same.
        """
        if gpus < 1 or nbytes < 0:
            raise ProfileError(f"a collective has at least one GPU and no negative size, not {gpus} and {nbytes}")
        if gpus == 1 or nbytes == 0:
            return 0.0
        operation = _NAMES.get(operation, operation)
        counts = self.counts(operation, dtype)
        if gpus in counts:
            return counts[gpus].seconds(nbytes)
        below, above = [n for n in counts if n < gpus], [n for n in counts if n > gpus]
        if below and above:
            return _between(operation, counts, max(below), gpus, min(above), nbytes)
        anchor = max(below) if below else min(above)
        if self.similar_system is not None and self.similar_system.knows(operation, anchor, gpus, dtype):
            ratio = self.similar_system.seconds(operation, nbytes, gpus, dtype) / self.similar_system.seconds(
                operation, nbytes, anchor, dtype
            )
            return counts[anchor].seconds(nbytes) * ratio
        others = sorted(counts.keys() - {anchor}, key=lambda n: abs(n - anchor))
        if others:
            hop = abs(counts[anchor].latency_seconds - counts[others[0]].latency_seconds) / abs(
                steps(operation, anchor) - steps(operation, others[0])
            )
            power = _power(operation, counts, *sorted((anchor, others[0])))
        else:
            hop, power = self._hop_seconds(operation, anchor, dtype), 0.0
        return _beyond(operation, counts[anchor], anchor, gpus, nbytes, hop, power)

    def counts(self, operation: str, dtype: str = "half") -> Counts:
        """Return the curves of an operation, of this dtype or of the measured dtype nearest in width."""
        dtypes = [d for o, d in self.curves if o == operation]
        if not dtypes:
            have = ", ".join(self.operations)
            raise ProfileError(f"{operation!r} was not measured on {self.system}: the table has {have}")
        if dtype not in WIDTHS and dtype not in dtypes:
            raise ProfileError(f"no dtype {dtype!r}: the table of {self.system} has {', '.join(dtypes)}")
        width = WIDTHS.get(dtype, 1)
        best = min(dtypes, key=lambda d: (d != dtype, abs(math.log2(WIDTHS.get(d, 1) / width)), -WIDTHS.get(d, 1)))
        return self.curves[operation, best]

    def knows(self, operation: str, anchor: int, gpus: int, dtype: str) -> bool:
        """Return whether the table has the count `anchor` and another one in the direction of `gpus`."""
        counts = self.counts(operation, dtype) if operation in self.operations else {}
        return anchor in counts and any((n > anchor) == (gpus > anchor) for n in counts if n != anchor)

    def without_count(self, gpus: int) -> CollectiveTimes:
        """Return the table as if this number of GPUs had not been measured."""
        kept = {key: {n: c for n, c in counts.items() if n != gpus} for key, counts in self.curves.items()}
        return replace(self, curves={key: counts for key, counts in kept.items() if counts})

    def _hop_seconds(self, operation: str, gpus: int, dtype: str) -> float:
        """Return a hop's latency from a single count: an all-reduce has twice an all-gather's steps.

        An all-to-all sends to all at once, so its latency has no hops.
        """
        if operation == "alltoall":
            return 0.0
        own = [self.counts(o, dtype).get(gpus) for o in ("all_gather", "all_reduce") if o in self.operations]
        curves = [curve for curve in own if curve is not None]
        if len(curves) == 2:
            return max(0.0, curves[1].latency_seconds - curves[0].latency_seconds) / (gpus - 1)
        return self.counts(operation, dtype)[gpus].latency_seconds * _NCCL_HOP


def with_similar_systems(tables: Sequence[CollectiveTimes]) -> dict[str, CollectiveTimes]:
    """Return the tables by system, each with the nearest other one if their times agree to 10 %."""
    found = {}
    for table in tables:
        near = [(_distance(table, other), k) for k, other in enumerate(tables) if other.system != table.system]
        distance, k = min(near, default=(math.inf, 0))
        found[table.system] = replace(
            table, similar_system=replace(tables[k], similar_system=None) if distance <= _SIMILAR else None
        )
    return found


def _distance(one: CollectiveTimes, other: CollectiveTimes) -> float:
    differences = [
        abs(math.log(other.curves[key][gpus].seconds(nbytes) / curve.seconds(nbytes)))
        for key, counts in one.curves.items()
        for gpus, curve in counts.items()
        if gpus in other.curves.get(key, {})
        for nbytes, _ in curve.points
    ]
    return statistics.fmean(differences) if differences else math.inf


def _bus_seconds(operation: str, curve: Curve, gpus: int, nbytes: float) -> float:
    """Return the time that bytes add to the latency, divided by the bus factor."""
    latency = curve.latency_seconds
    return max(curve.seconds(nbytes) - latency, _LEAST * latency) / bus_factor(operation, gpus)


def _between(operation: str, counts: Counts, low: int, gpus: int, high: int, nbytes: float) -> float:
    """Interpolate between two numbers of GPUs: latency linearly in steps, bus time geometrically.

    Bus time is interpolated over 1/N where each GPU has its own link (it saturates), over log N where they share one
    (it keeps growing), and in between by the power with which it grows.
    """
    share = _share(float, low, gpus, high)
    latency = (1 - share) * counts[low].latency_seconds + share * counts[high].latency_seconds
    first, last = (_bus_seconds(operation, counts[n], n, nbytes) for n in (low, high))
    power = min(1.0, _power(operation, counts, low, high))
    own, shared = _share(lambda n: -1 / n, low, gpus, high), _share(math.log, low, gpus, high)
    bus = first * math.pow(last / first, power * shared + (1 - power) * own)
    return latency + bus * bus_factor(operation, gpus)


def _beyond(
    operation: str, curve: Curve, anchor: int, gpus: int, nbytes: float, hop_seconds: float, power: float
) -> float:
    latency = curve.latency_seconds + hop_seconds * (steps(operation, gpus) - steps(operation, anchor))
    bus = max(0.0, curve.seconds(nbytes) - curve.latency_seconds) / bus_factor(operation, anchor)
    least = curve.latency_seconds * min(1.0, gpus / anchor)
    return max(latency, least) + bus * math.pow(gpus / anchor, power) * bus_factor(operation, gpus)


def _power(operation: str, counts: Counts, low: int, high: int) -> float:
    """Return the power of the count with which the bus time of large messages grows; 0 where it falls."""
    sizes = [nbytes for nbytes, _ in counts[high].points[-_LARGE_SIZES:]]
    growths = [
        math.log(_bus_seconds(operation, counts[high], high, n) / _bus_seconds(operation, counts[low], low, n))
        for n in sizes
    ]
    return min(_STEEPEST, max(0.0, statistics.median(growths) / math.log(high / low)))


def _share(scale: Callable[[int], float], low: int, at: int, high: int) -> float:
    return (scale(at) - scale(low)) / (scale(high) - scale(low))
