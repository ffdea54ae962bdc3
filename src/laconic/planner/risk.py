"""The risk of a strategy: its effect on the final loss where it, or the nearest strategy, was measured.

The table is `measured/accuracy.csv`, made by `bench/accuracy.py`; docs/accuracy.md says how far it can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from laconic import registry
from laconic.compression.optional import joins_of
from laconic.errors import LaconicError
from laconic.language.word import Word
from laconic.planner.guarantee import guarantee_of
from laconic.planner.values import Risk
from laconic.reading import Count, Finite, Natural, NotNegative, Source
from laconic.strategy import DEFAULTS, Map, Phases, Sentence, Strategy, Tiers

__all__ = ["MeasuredLoss", "guarantee_of", "measured_losses", "risk_of"]

TABLE = Path(__file__).parent / "measured" / "accuracy.csv"
OWN_OPTIMIZER = {"digits": "sgd", "chars": "adam"}
_SIGNS = {"more": 1, "less": -1, None: 0}  # of a knob, by which of its values are gentler


@dataclass(frozen=True)
class MeasuredLoss:
    """A row of the table: a sentence's loss over that of tuned `bsp` at equal samples, with an interval over seeds."""

    sentence: str
    task: Literal[tuple(OWN_OPTIMIZER)]  # type: ignore[valid-type]
    workers: Natural
    loss_ratio: NotNegative
    low: Finite
    high: Finite
    fewer_bytes: NotNegative
    rates: Count  # learning rates tried; 0: set by hand
    baseline_optimizer: str = ""

    @cached_property
    def strategy(self) -> Strategy:
        return Strategy.parse(self.sentence)

    @property
    def risk(self) -> Risk:
        return Risk(self.loss_ratio, self.low, self.high, self.workers, self.task, self.sentence)


@cache
def measured_losses(path: Path = TABLE) -> tuple[MeasuredLoss, ...]:
    """Return the measured losses that apply to users' runs: those whose baseline has the task's usual optimizer."""
    instead = f"make it with `python bench/accuracy.py --out {path}`"
    source = Source(path, "table of measured losses", instead)
    rows = source.rows(source.text(), MeasuredLoss)
    return tuple(row for row in rows if row.baseline_optimizer == OWN_OPTIMIZER[row.task])


def risk_of(strategy: Strategy | str, workers: int, rows: Sequence[MeasuredLoss] | None = None) -> Risk | None:
    """Return the risk of the nearest measured row, the worse of the tasks; None where nothing similar was measured.

    The nearest row has the same words; of their main knobs, the nearest value that is not gentler than the one asked
    for, or the nearest gentler one where there is none; then the nearest number of workers. A rule and a compressor
    that were only measured separately, and tiers, count as the product of their ratios, none below 1; a map and phases
    count as their worst part.
    """
    return _risk(Strategy.parse(strategy), workers, measured_losses() if rows is None else tuple(rows))


@lru_cache(maxsize=4096)
def _risk(strategy: Strategy, workers: int, rows: tuple[MeasuredLoss, ...]) -> Risk | None:
    if guarantee_of(strategy)[0]:
        return Risk(1.0, 1.0, 1.0, workers, "any", "bsp")
    if isinstance(strategy, Sentence) and strategy.schedule.name != DEFAULTS["schedule"]:
        return _risk(
            strategy.but(Word(DEFAULTS["schedule"])), workers, rows
        )  # when messages are sent does not change the loss
    found, gentler = _nearest(strategy, workers, rows)
    if found is not None and not gentler:
        return found
    made = _combined(strategy, workers, rows)
    return _worst([risk for risk in (found, made) if risk is not None])


def _combined(strategy: Strategy, workers: int, rows: tuple[MeasuredLoss, ...]) -> Risk | None:
    """Return the risk combined from parts that were measured separately, or None where a part was not measured."""
    if isinstance(strategy, Sentence):
        rule, chain = strategy.but((Word("none"),)), _synchronous(strategy)
        if chain is None or strategy in (rule, chain) or guarantee_of(chain)[0] or guarantee_of(rule)[0]:
            return None
        return _product([_risk(rule, workers, rows), _risk(chain, workers, rows)])
    inner = [_risk(part, workers, rows) for part in strategy.parts_within if not guarantee_of(part)[0]]
    if isinstance(strategy, Tiers):
        return _product(inner)
    known = [risk for risk in inner if risk is not None]
    return _worst(known) if len(known) == len(inner) else None


def _worst(risks: Sequence[Risk]) -> Risk | None:
    return max(risks, key=lambda risk: (risk.loss_ratio, risk.high), default=None)


def _synchronous(sentence: Sentence) -> Sentence | None:
    """Return the sentence with the same compression in every step, or None where that is invalid."""
    try:
        return Sentence.of(sentence.compression)
    except LaconicError:
        return None


def _product(parts: Sequence[Risk | None]) -> Risk | None:
    """Return the product of risks, as if independent; ratios below 1 count as 1, so that none offsets another."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if len(known) == 1:
        return known[0]
    return Risk(
        loss_ratio=math.prod(max(1.0, part.loss_ratio) for part in known),
        low=max(part.low for part in known),
        high=math.prod(max(1.0, part.high) for part in known),
        workers=min(part.workers for part in known),
        task=" and ".join(dict.fromkeys(part.task for part in known)),
        sentence=" × ".join(part.sentence for part in known),
    )


def _nearest(strategy: Strategy, workers: int, rows: tuple[MeasuredLoss, ...]) -> tuple[Risk | None, bool]:
    """Return the worst of each task's nearest row, and whether all rows are gentler than what was asked for."""
    for joined in (True, False):  # whether tensors are compressed together matters less than how
        fitting = _by_signature(rows, joined).get(_signature(strategy, joined), ())
        nearest: dict[str, tuple[tuple[float, ...], MeasuredLoss]] = {}
        for row in fitting:
            there = _distance(strategy, row, workers)
            if row.task not in nearest or there < nearest[row.task][0]:
                nearest[row.task] = there, row
        if nearest:
            gentler = all(there[0] > 0 for there, _ in nearest.values())
            return _worst([row.risk for _, row in nearest.values()]), gentler
    return None, False


@lru_cache(maxsize=4)
def _by_signature(rows: tuple[MeasuredLoss, ...], joined: bool) -> dict[tuple[Any, ...], list[MeasuredLoss]]:
    found: dict[tuple[Any, ...], list[MeasuredLoss]] = {}
    for row in rows:
        found.setdefault(_signature(row.strategy, joined), []).append(row)
    return found


def _distance(strategy: Strategy, row: MeasuredLoss, workers: int) -> tuple[float, ...]:
    """Return the distance of a row, the least being the nearest.

    Compared in order: whether it is gentler, the distance of main knobs, the number of other knobs that differ, the
    distance in workers, and whether its learning rate was set by hand.
    """
    gentler, far, others = 0.0, 0.0, 0.0
    ours, theirs = (_words(s, joined=False) for s in (strategy, row.strategy))
    for asked, there in zip(ours, theirs, strict=True):
        mine, other = asked.make(), there.make()
        for knob in registry.knobs(type(mine)):
            a, b = getattr(mine, knob.name), getattr(other, knob.name)
            if a == b:
                continue
            sign = _SIGNS[knob.bounds.gentler]
            if sign and _positive(a) and _positive(b):
                difference = sign * math.log(b / a)
                gentler += max(0.0, difference)
                far += abs(difference)
            else:
                others += 1
    steps = abs(math.log(row.workers / workers))
    return float(gentler > 0), far, others, steps, -float(row.workers), float(row.rates == 0)


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _words(strategy: Strategy, joined: bool) -> Iterator[Word]:
    """Yield the words that change the mathematics, part after part; that tensors are `joined` only if asked for."""
    if isinstance(strategy, Sentence):
        yield strategy.sync
        yield from (word for word in strategy.compression if joined or not _joins(word))
        if strategy.sync.technique.talks == "mix" and strategy.topology is not None:
            yield strategy.topology
    for part in strategy.parts_within:
        yield from _words(part, joined)


def _joins(word: Word) -> bool:
    return joins_of(word.make())


def _signature(strategy: Strategy, joined: bool) -> tuple[Any, ...]:
    """Return the shape and the names of the words, without the values of knobs and the ends of phases."""
    if isinstance(strategy, Sentence):
        return ("sentence", *(word.name for word in _words(strategy, joined)))
    labels = [str(selector) for selector, _ in strategy.rules] if isinstance(strategy, Map) else []
    kind = "phases" if isinstance(strategy, Phases) else "tiers" if isinstance(strategy, Tiers) else "map"
    return (kind, *labels, *(_signature(part, joined) for part in strategy.parts_within))
