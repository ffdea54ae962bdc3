"""The strategies that a loss budget admits by measured losses, among which `auto` may choose."""

from __future__ import annotations

from collections.abc import Iterator

from laconic.errors import StrategyError
from laconic.language.auto import START
from laconic.planner.candidates import compressions, rules
from laconic.planner.risk import risk_of
from laconic.strategy import Sentence, Strategy, Word

LONGEST = 16  # period in steps: the next choice comes soon


def strategies_within(loss_budget: float, workers: int) -> list[str]:
    """Return the strategies whose measured loss rises by at most the budget, at the upper end of its interval."""
    risks = {str(sentence): risk_of(sentence, workers) for sentence in _candidates()}
    return [text for text, risk in risks.items() if risk is not None and risk.high - 1 <= loss_budget]


def _candidates() -> Iterator[Sentence]:
    """Yield what `auto` can change to and back from at any step: rules without an optimizer of their own."""
    start = Strategy.parse(START)
    assert isinstance(start, Sentence)
    every = compressions()
    for chain in every:
        if chain != start.compression:
            yield from _valid(start.sync, chain, start.architecture, start.schedule)
    for rule in rules().words:
        made = rule.make()
        if made.copies <= 1 and made.cadence.period <= LONGEST:
            for chain in every:
                yield from _valid(rule, chain, start.architecture)


def _valid(*words: Word | tuple[Word, ...]) -> Iterator[Sentence]:
    try:
        yield Sentence.of(*words)
    except StrategyError:
        return
