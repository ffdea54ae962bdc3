"""The map: at each bandwidth and model size, the fastest method to the loss of tuned DDP, or that nothing pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite, log, nan, sqrt

from laconic.experiments.statistics import Spread
from laconic.frontier.clock import Clock, StepTime, Traffic
from laconic.frontier.equivalence import Equivalence
from laconic.frontier.methods import Method, by_shares, with_shares
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
    """A method that was measured: its gap by size, what the ledger counted, and how gaps convert to tokens.

    Its `name` says the ends of phases as shares of the steps, and what differs from the main baseline.
    """

    name: str
    method: Method
    trend: Trend
    traffic: Traffic
    equivalence: Equivalence

    def loss_ratio(self, parameters: float) -> Spread:
        """Return its loss over DDP's at a size."""
        gap = self.trend.at(parameters)
        return Spread(1 + gap.middle, 1 + gap.low, 1 + gap.high)


@dataclass(frozen=True)
class Offer:
    """A method in one cell: a step's time, its DDP-equivalent tokens, and the speed-up to DDP's loss.

    The speed-up is DDP's step time over the method's, times the method's share of DDP-equivalent tokens. Its interval
    joins that of the loss over seeds and the errors that predictions of steps were measured to have. A method `reaches`
    DDP's loss where its own is no higher than DDP's on the fewest tokens that DDP was run on: what is farther away has
    no tokens that anybody measured.
    """

    name: str
    method: Method
    step: StepTime
    tokens: Spread
    reaches: bool
    basis: Basis
    speed_up: Spread

    @property
    def pays(self) -> bool:
        """Whether it reaches DDP's loss and the whole interval is above 1; an unknown interval does not pay."""
        return self.reaches and self.speed_up.low > 1


@dataclass(frozen=True)
class Cell:
    """One bandwidth and one size: DDP's time of a step, and every method's offer, the fastest first; those that do not
    reach DDP's loss come last."""

    bits_per_second: float
    size: float
    ddp: StepTime
    computing_seconds: float
    offers: tuple[Offer, ...]

    @property
    def best(self) -> Offer | None:
        """The fastest method to DDP's loss among those that pay for certain; None: nothing pays."""
        return next((offer for offer in self.offers if offer.pays), None)


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
                key = by_shares(line.method, line.tuned.reported[0].steps)
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
    for size in sizes:
        shape = Shape(size, workers, VOCABULARIES.get(task, 256))
        clock = Clock(shape)
        for rate in bandwidths() if rates is None else rates:
            ddp = clock.ddp(rate)
            offers = [_offer(one, clock, ddp, rate) for one in found]
            ordered = sorted(offers, key=lambda offer: (not offer.reaches, -offer.speed_up.middle))
            cells.append(Cell(rate, size, ddp, clock.computing_seconds, tuple(ordered)))
    largest = max((one.trend.measured_up_to for one in found), default=0)
    return Map(task, workers, tuple(found), tuple(cells), largest)


def _contends(line: Line, table: Table) -> bool:
    strategy = line.method.strategy
    if strategy is not None and strategy in (parsed("bsp"), parsed(SIXTEEN_BITS)):
        return False
    return line.gap_by_t is not None and line.method.workers == table.workers


def _contender(found: Sequence[tuple[Table, Line]], tables: Sequence[Table]) -> Contender:
    """Join a method's lines of several rungs; a single seed is given the widest interval known of it, or of others.

    Phases that end at a step are the same method where they end at the same share of the steps.
    """
    ordered = sorted(found, key=lambda entry: entry[0].parameters)
    gaps = {table.parameters: line.gap_by_t for table, line in ordered if line.gap_by_t is not None}
    others = [line.gap_by_t for table in tables for line in table.lines if line.gap_by_t is not None]
    otherwise = _widest(list(gaps.values())) or _widest(others) or nan
    rungs = tuple(Rung.of(size, gap, otherwise) for size, gap in sorted(gaps.items()))
    table, line = ordered[-1]
    traffic = Traffic(line.bytes_per_step, table.parameters, line.tuned.reported[0].steps)
    curves = [one for one in sorted(tables, key=lambda t: t.parameters) if one.equivalence is not None]
    nearest = [one for one in curves if one.parameters <= table.parameters] or curves[:1]
    curve = nearest[-1].equivalence
    assert curve is not None
    name = with_shares(table.name(line.method), traffic.steps)
    return Contender(name, line.method, Trend(rungs), traffic, curve)


def _widest(gaps: Sequence[Spread]) -> float | None:
    halves = [(gap.high - gap.low) / 2 for gap in gaps if isfinite(gap.high - gap.low)]
    return max((half for half in halves if half > 0), default=None)


def _offer(one: Contender, clock: Clock, ddp: StepTime, rate: float) -> Offer:
    step, size = clock.step(one.method.strategy, one.traffic, rate), clock.shape.size
    ratio = one.loss_ratio(size)
    tokens, reaches = one.equivalence.spread(ratio), one.equivalence.reached(ratio.middle)
    middle = float(ddp.seconds / step.seconds * tokens.middle)
    low = exp(-_joined(_apart(tokens.middle, tokens.low), log(step.high_factor)))
    high = exp(_joined(_apart(tokens.high, tokens.middle), -log(step.low_factor)))
    gain = Spread(middle, middle * low, middle * high)
    return Offer(one.name, one.method, step, tokens, reaches, one.trend.basis(size), gain)


def _apart(larger: float, smaller: float) -> float:
    return nan if larger != larger or smaller != smaller else max(0.0, log(larger / smaller))


def _joined(one: float, other: float) -> float:
    """Return the width of two independent errors, in logarithms."""
    return sqrt(one * one + other * other)
