"""The min-max partition of a chain, which every planner of stages begins with: the slowest stage is as fast as any cut
allows, by dynamic programming."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Span:
    """The units `start` to `stop` - 1 of a chain on `devices` neighbouring devices."""

    start: int
    stop: int
    devices: int = 1


class MinMax:
    """For every run of units that begins at one of `starts` and every number of devices, the slowest stage of the best
    partition, in which all these devices are used.

    - `units`: how many the chain has.
    - `devices`: how many there are, in the order in which stages occupy them.
    - `seconds`: the function of (first device, how many) that returns, at [i, j], the time of units i to j - 1 as one
      stage on these; infinite where that stage cannot be. A stage of no units is none.
    - `widths`: how many devices one stage may have.
    """

    def __init__(
        self,
        units: int,
        devices: int,
        seconds: Callable[[int, int], Matrix],
        widths: Iterable[int] = (1,),
        starts: Sequence[int] = (0,),
    ) -> None:
        self._row = {start: row for row, start in enumerate(starts)}
        shape = (len(starts), units + 1)
        empty = np.full(shape, np.inf)
        empty[range(len(starts)), list(starts)] = 0.0
        self._best: list[Matrix] = [empty]
        self._cut = [np.zeros(shape, np.int64)]
        self._width = [np.zeros(shape, np.int64)]
        holds_units = np.arange(units + 1)[:, None] < np.arange(units + 1)[None, :]
        widths = list(widths)
        for used in range(1, devices + 1):
            best, cuts, wide = np.full(shape, np.inf), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
            for width in (width for width in widths if width <= used):
                last = np.where(holds_units, seconds(used - width, width), np.inf)
                slowest = np.maximum(self._best[used - width][:, :, None], last[None])
                cut = slowest.argmin(axis=1)
                reached = np.take_along_axis(slowest, cut[:, None], axis=1)[:, 0]
                better = reached < best
                best[better], cuts[better], wide[better] = reached[better], cut[better], width
            self._best.append(best)
            self._cut.append(cuts)
            self._width.append(wide)

    def bottleneck(self, devices: int, start: int, stop: int) -> float:
        """Return the time of the slowest stage; infinite where no partition can be."""
        return float(self._best[devices][self._row[start], stop])

    def bottlenecks(self, devices: int) -> Matrix:
        """Return the time of the slowest stage for every start, in their order, and every stop."""
        return self._best[devices]

    def spans(self, devices: int, start: int, stop: int) -> tuple[Span, ...]:
        """Return the stages of the best partition, the first one first; none where no partition can be."""
        row, found = self._row[start], list[Span]()
        if not np.isfinite(self._best[devices][row, stop]):
            return ()
        while devices:
            width, cut = int(self._width[devices][row, stop]), int(self._cut[devices][row, stop])
            found.append(Span(cut, stop, width))
            devices, stop = devices - width, cut
        return tuple(reversed(found))


def sums(values: Sequence[float]) -> Matrix:
    """Return, at [i, j], the sum of values i to j - 1."""
    total: Matrix = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])
    found: Matrix = total[None, :] - total[:, None]
    return found


def balanced(seconds: Sequence[float], stages: int) -> tuple[Span, ...]:
    """Return the cut of units with these times into stages of which the slowest is as fast as possible."""
    times = sums(seconds)
    return MinMax(len(seconds), stages, lambda first, width: times).spans(stages, 0, len(seconds))
