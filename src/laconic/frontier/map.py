"""The map: at each bandwidth and model size, the method that is fastest for certain to the loss of tuned DDP, or that
nothing pays."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log, nan, sqrt

from laconic.experiments.statistics import Spread
from laconic.frontier.clock import Clock, StepTime, Traffic
from laconic.frontier.equivalence import Equivalence
from laconic.frontier.methods import Method, same_on_all_rungs, with_shares
from laconic.frontier.shapes import SIZES, Shape
from laconic.frontier.tables import SIXTEEN_BITS, FrontierError, Line, Table
from laconic.frontier.trend import Basis, Rung, Trend
from laconic.planner.runs import parsed

SLOWEST, FASTEST = 50e6, 400e9
VOCABULARIES = {"bpe": 8192}  # by task; bytes are 256


def bandwidths(count: int = 17) -> tuple[float, ...]:
    """Return rates from 50 Mb/s to 400 Gb/s, evenly apart on a logarithmic scale, rounded to three digits."""
    ratio = FASTEST / SLOWEST
    return tuple(float(f"{SLOWEST * ratio ** (k / (count - 1)):.3g}") for k in range(count))


@dataclass(frozen=True)
class Contender:
    """A method that was measured: its gap by size, what the ledger counted, and how gaps convert to tokens, by the
    number of parameters with which that was measured.

    Its `name` says the ends of phases as shares of the steps, and what differs from the main baseline.
    """

    name: str
    method: Method
    trend: Trend
    traffic: Traffic
    equivalences: Mapping[int, Equivalence]

    def equivalence(self, parameters: float) -> Equivalence:
        """Return how gaps convert to tokens at a size: as they do at the nearest one that was measured."""
        return self.equivalences[min(self.equivalences, key=lambda measured: abs(log(measured / parameters)))]

    def never_ahead_of(self, other: Contender) -> bool:
        """Return whether at every size at which this one was measured the other one's gap is smaller."""
        theirs = {rung.parameters: rung.gap for rung in other.trend.rungs}
        return all(rung.gap > theirs.get(rung.parameters, inf) for rung in self.trend.rungs)

    def loss_ratio(self, parameters: float) -> Spread:
        """Return its loss over DDP's at a size."""
        gap = self.trend.at(parameters)
        return Spread(1 + gap.middle, 1 + gap.low, 1 + gap.high)


@dataclass(frozen=True)
class Offer:
    """A method in one cell: a step's time, its DDP-equivalent tokens, and the speed-up to DDP's loss.

    The speed-up is DDP's step time over the method's, times the method's share of DDP-equivalent tokens. Its interval
    joins that of the loss over seeds and the errors that predictions of steps were measured to have. A method `reaches`
    DDP's loss where its own is no higher than DDP's on half of the tokens: what is farther away is no loss of DDP's.
    Where its loss is extrapolated it is `dominated` by another whose steps take no longer and whose loss was lower at
    every size at which it was measured, since a gap that falls faster because it was larger is no reason to prefer it.
    """

    name: str
    method: Method
    step: StepTime
    tokens: Spread
    reaches: bool
    basis: Basis
    speed_up: Spread
    dominated: bool = False

    @property
    def pays(self) -> bool:
        """Whether it reaches DDP's loss and the whole interval is above 1; an unknown interval does not pay."""
        return self.reaches and self.speed_up.low > 1


@dataclass(frozen=True)
class Cell:
    """One bandwidth and one size: DDP's time of a step, and every method's offer. Those that reach DDP's loss come
    first, those that are dominated behind the others, by the lower ends of their speed-ups, so that a method does not
    win by how little is known of it."""

    bits_per_second: float
    size: float
    ddp: StepTime
    computing_seconds: float
    offers: tuple[Offer, ...]

    @property
    def best(self) -> Offer | None:
        """The method that is the fastest to DDP's loss at the lower end of its interval, if it pays for certain; None:
        nothing pays."""
        return next((offer for offer in self.offers if offer.pays and not offer.dominated), None)


@dataclass(frozen=True)
class Map:
    """All cells of a task; `measured_up_to` is the largest model whose loss was measured."""

    task: str
    workers: int
    contenders: tuple[Contender, ...]
    cells: tuple[Cell, ...]
    measured_up_to: int

    def cell(self, bits_per_second: float, size: float) -> Cell:
        """Return the cell at a bandwidth and a size of the map's own."""
        return next(c for c in self.cells if (c.bits_per_second, c.size) == (bits_per_second, size))


def contenders(tables: Sequence[Table], task: str, workers: int | None = None) -> tuple[Contender, ...]:
    """Return the methods of a task whose gap to DDP was measured on so many workers, on equal shards."""
    own = [table for table in tables if table.task == task and not table.skewed]
    own = [table for table in own if workers in (None, table.workers)]
    if not own:
        counts = sorted({table.workers for table in tables if table.task == task})
        raise FrontierError(
            f"no training of the task {task!r} was measured on {workers} workers: write --workers "
            f"{' or '.join(map(str, counts))}"
        )
    curves = [table.equivalence for table in own if table.equivalence is not None]
    if not curves:
        raise FrontierError(
            f"the task {task!r} has no run of bsp on fewer tokens, so that no loss can be converted into time: there "
            "are tables, but no map"
        )
    lines: dict[tuple[object, ...], list[tuple[Table, Line]]] = {}
    for table in own:
        for line in table.lines:
            if _contends(line, table):
                key = same_on_all_rungs(line.method, line.tuned.reported[0].steps)
                lines.setdefault(key, []).append((table, line))
    return tuple(_contender(found, own) for found in lines.values())


def draw(
    found: Sequence[Contender],
    task: str,
    workers: int,
    rates: Sequence[float] | None = None,
    sizes: Sequence[float] = SIZES,
) -> Map:
    """Return the map of these methods."""
    cells = []
    better = {one.name: {other.name for other in found if one.never_ahead_of(other)} for one in found}
    for size in sizes:
        shape = Shape(size, workers, VOCABULARIES.get(task, 256))
        clock = Clock(shape)
        for rate in bandwidths() if rates is None else rates:
            ddp = clock.ddp(rate)
            offers = [_offer(one, clock, ddp, rate) for one in found]
            ordered = sorted((_compared(offer, offers, better[offer.name]) for offer in offers), key=_place)
            cells.append(Cell(rate, size, ddp, clock.computing_seconds, tuple(ordered)))
    largest = max((one.trend.measured_up_to for one in found), default=0)
    return Map(task, workers, tuple(found), tuple(cells), largest)


def _contends(line: Line, table: Table) -> bool:
    strategy = line.method.strategy
    if strategy is not None and strategy in (parsed("bsp"), parsed(SIXTEEN_BITS)):
        return False
    return line.gap_by_t is not None and line.method.workers == table.workers


def _contender(found: Sequence[tuple[Table, Line]], tables: Sequence[Table]) -> Contender:
    """Join a method's lines of several rungs; a single seed is given the widest interval of any method on its rung, or
    of all rungs where it has none.

    Phases that end at a step are the same method where they end at the same share of the steps.
    """
    ordered = sorted(found, key=lambda entry: entry[0].parameters)
    gaps = {table.parameters: line.gap_by_t for table, line in ordered if line.gap_by_t is not None}
    known = {one.parameters: [line.gap_by_t for line in one.lines if line.gap_by_t is not None] for one in tables}
    anywhere = _widest([gap for of_rung in known.values() for gap in of_rung]) or nan
    rungs = tuple(Rung.of(size, gap, _widest(known[size]) or anywhere) for size, gap in sorted(gaps.items()))
    table, line = ordered[-1]
    traffic = Traffic(line.bytes_per_step, table.parameters, line.tuned.reported[0].steps)
    curves = {one.parameters: one.equivalence for one in tables if one.equivalence is not None}
    no_larger = {size: curve for size, curve in curves.items() if size <= table.parameters}
    name = with_shares(table.name(line.method), traffic.steps)
    return Contender(name, line.method, Trend(rungs), traffic, no_larger or {min(curves): curves[min(curves)]})


def _widest(gaps: Sequence[Spread]) -> float | None:
    halves = [(gap.high - gap.low) / 2 for gap in gaps if isfinite(gap.high - gap.low)]
    return max((half for half in halves if half > 0), default=None)


def _offer(one: Contender, clock: Clock, ddp: StepTime, rate: float) -> Offer:
    step, size = clock.step(one.method.strategy, one.traffic, rate), clock.shape.size
    ratio = one.loss_ratio(size)
    curve = one.equivalence(size)
    tokens, reaches = curve.spread(ratio), curve.reached(ratio.middle)
    middle = float(ddp.seconds / step.seconds * tokens.middle)
    low = exp(-_joined(_apart(tokens.middle, tokens.low), log(step.high_factor)))
    high = exp(_joined(_apart(tokens.high, tokens.middle), -log(step.low_factor)))
    gain = Spread(middle, middle * low, middle * high)
    return Offer(one.name, one.method, step, tokens, reaches, one.trend.basis(size), gain)


def _compared(offer: Offer, offers: Sequence[Offer], better: Collection[str]) -> Offer:
    """Mark an offer whose loss is extrapolated where it is dominated by one of those whose losses were lower."""
    if offer.basis == "measured":  # there the intervals say which is ahead
        return offer
    as_fast = (1 + 1e-9) * offer.step.seconds
    return replace(
        offer, dominated=any(one.name in better and one.reaches and one.step.seconds <= as_fast for one in offers)
    )


def _place(offer: Offer) -> tuple[bool, bool, float, float]:
    low = offer.speed_up.low
    return not offer.reaches, offer.dominated, inf if low != low else -low, -offer.speed_up.middle


def _apart(larger: float, smaller: float) -> float:
    return nan if larger != larger or smaller != smaller else max(0.0, log(larger / smaller))


def _joined(one: float, other: float) -> float:
    """Return the width of two independent errors, in logarithms."""
    return sqrt(one * one + other * other)
