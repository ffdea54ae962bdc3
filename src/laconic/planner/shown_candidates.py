"""Which of thousands of priced strategies a table shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from laconic import registry
from laconic.planner.autotune import PAYS
from laconic.planner.preferences import Preferences
from laconic.planner.priced_candidates import Baseline, Candidate
from laconic.strategy import Sentence, Strategy

_MOST = 0.8  # of what the fastest setting of a technique saves


def each_once(ranked: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yield, of the candidates that compute the same values, the one with the best schedule."""
    seen: set[Strategy] = set()
    for candidate in ranked:
        if candidate.mathematics not in seen:
            seen.add(candidate.mathematics)
            yield candidate


def shown_of(ranked: Sequence[Candidate], base: Baseline, preferences: Preferences, top: int) -> list[Candidate]:
    """Return the best admitted candidates; of those with a measured risk, those that risk less than everything faster;
    and of those whose risk is unknown, one of each technique that would pay."""
    admitted = [candidate for candidate in ranked if candidate.admitted_by(preferences)][: max(3, top // 2)]
    others = [candidate for candidate in front(ranked) if candidate not in admitted][-max(0, top - len(admitted)) :]
    unknown = one_of_each([candidate for candidate in ranked if candidate.is_unknown and _pays(candidate, base)], base)
    return sorted([*admitted, *others, *unknown], key=lambda candidate: candidate.amount)


def front(ranked: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yield the Pareto front: candidates of known risk such that no better one risks less."""
    least = float("inf")
    for candidate in ranked:
        if candidate.risk is not None and candidate.risk.high < least:
            least = candidate.risk.high
            yield candidate


def one_of_each(ranked: Sequence[Candidate], base: Baseline) -> Iterator[Candidate]:
    """Yield one setting of each compressor and of each rule alone, and the best one of each rule with a compressor.

    Where the loss is unknown nothing speaks for the harshest setting, which is the fastest: of those that save most of
    what that one saves, the one that sends the most is taken, and of those the gentlest.
    """
    settings: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in ranked:
        if isinstance(candidate.strategy, Sentence):
            settings.setdefault(_changed(candidate.strategy), []).append(candidate)
    for found in settings.values():
        most = _MOST * (base.candidate.amount - found[0].amount)
        gentle = [candidate for candidate in found if base.candidate.amount - candidate.amount >= most]
        yield max(gentle, key=lambda candidate: (candidate.priced.sent_bytes, _gentleness(candidate.strategy)))


def _gentleness(strategy: Strategy) -> float:
    """Return how near the settings of a strategy are to synchronous SGD, by what their knobs declare; of use between
    settings of the same words."""
    found = 0.0
    for word in (strategy.sync, *strategy.compression) if isinstance(strategy, Sentence) else ():
        made = word.make()
        for knob in registry.knobs(type(made)):
            value = getattr(made, knob.name)
            if knob.bounds.gentler and isinstance(value, int | float) and value > 0:
                found += math.log(value) * (1 if knob.bounds.gentler == "more" else -1)
    return found


def _changed(sentence: Sentence) -> tuple[str, str]:
    """Return which word of a sentence differs from plain synchronous SGD: the rule and, without one, the compressor."""
    if sentence.sync == Sentence().sync:
        return "compressor", sentence.compression[0].name
    return ("rule" if sentence.compression == Sentence().compression else "rule, compressor"), sentence.sync.name


def _pays(candidate: Candidate, base: Baseline) -> bool:
    return candidate.amount * PAYS <= base.candidate.amount
