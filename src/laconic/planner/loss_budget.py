"""The strategies that a loss budget admits by measured losses, among which `auto` may choose."""

from __future__ import annotations

from collections.abc import Iterator

from laconic.errors import StrategyError
from laconic.language.auto import START
from laconic.planner.candidates import compressions, rules
from laconic.planner.guarantee import is_sixteen_bits
from laconic.planner.risk import Training, risk_of
from laconic.strategy import Sentence, Strategy, Word

LONGEST = 16  # period in steps: the next choice comes soon


def strategies_within(loss_budget: float, training: Training) -> list[str]:
    """Return the strategies whose loss was measured, in trainings like this one, to rise by at most the budget, at the
    upper end of its interval; and `bsp` with 16-bit gradients, which count as the same wherever there is a budget."""
    found = []
    for sentence in dict.fromkeys(_candidates()):
        risk = risk_of(sentence, training)
        plain = sentence.sync == Sentence().sync and is_sixteen_bits(sentence.compression)
        if plain or (risk is not None and risk.high - 1 <= loss_budget):
            found.append(str(sentence))
    return found


def _candidates() -> Iterator[Sentence]:
    """Yield what `auto` can change to and back from at any step: rules that leave the step to the user's optimizer and
    have none of their own."""
    start = Strategy.parse(START)
    assert isinstance(start, Sentence)
    every = compressions()
    for chain in every:
        if chain != start.compression:
            yield from _valid(start.sync, chain, start.architecture, start.schedule)
    for rule in rules().words:
        made = rule.make()
        steady = made.cadence is not None and made.cadence.period <= LONGEST
        if steady and made.copies <= 1 and not made.replaces_step:
            for chain in every:
                yield from _valid(rule, chain, start.architecture)


def _valid(*words: Word | tuple[Word, ...]) -> Iterator[Sentence]:
    try:
        yield Sentence.of(*words)
    except StrategyError:
        return
