"""Phases as shares of a run's steps: by these they are weighed in a mean, and are the same in runs of any length.

Within a phase a rule may change when it exchanges: by stretches, which are shares of the phase's own steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from laconic.language.predicates import StepCondition
from laconic.strategy import Phases, Sentence, Strategy
from laconic.values.cadence import Stretch

Shares = tuple[tuple[Strategy, float, tuple[Stretch, ...]], ...]
"""Phases, each with its share of the steps and, of a rule that changes within it, the stretches."""


def phases_of(strategy: Strategy, steps: int | None) -> list[tuple[Strategy, float]]:
    """Return the strategies that follow one another in a run of so many steps, each with its share of them.

    Where the shares are not known beforehand the last phase counts for all: in a long run it does.
    """
    if not isinstance(strategy, Phases):
        return [(strategy, 1.0)]
    ends = _ends(strategy)
    if steps is None or ends is None:
        return [(strategy.last, 1.0)]
    bounds = [0, *(min(end, steps) for end in ends), steps]
    parts = [*(part for part, _ in strategy.parts), strategy.last]
    shares = [(end - begun) / steps for begun, end in pairwise(bounds)]
    return [(part, share) for part, share in zip(parts, shares, strict=True) if share > 0]


def steps_within(share: float, steps: int | None) -> int | None:
    """Return how many steps a share of a run is; None where the run's are not known."""
    return None if steps is None else max(1, round(share * steps))


def by_shares(strategy: Strategy, steps: int | None) -> Shares:
    """Return what makes a strategy the same in runs of other lengths: its phases with their shares, to a thousandth,
    and the stretches of rules that change within one. Phases whose shares are not known are the same as nothing but
    themselves."""
    if isinstance(strategy, Phases) and (steps is None or _ends(strategy) is None):
        return ((strategy, 1.0, ()),)
    found = []
    for part, share in phases_of(strategy, steps):
        stretches = _changing(part, steps_within(share, steps)) if steps is not None else ()
        found.append((part, round(share, 3), tuple(replace(one, share=round(one.share, 3)) for one in stretches)))
    return tuple(found)


def rescaled(strategy: Strategy, measured_steps: int | None, steps: int | None) -> Strategy:
    """Return the strategy of a run of some steps with the shares that its phases had in one of others; the strategy as
    it is where either number is unknown."""
    if not isinstance(strategy, Phases) or measured_steps is None or steps is None:
        return strategy
    return replace(
        strategy,
        parts=tuple(
            (part, StepCondition(max(1, round(end.step * steps / measured_steps))))
            if isinstance(end, StepCondition)
            else (part, end)
            for part, end in strategy.parts
        ),
    )


def scales(strategy: Strategy) -> bool:
    """Return whether a strategy is phases that end at steps, which a shorter run goes through at the same shares."""
    return isinstance(strategy, Phases) and all(isinstance(end, StepCondition) for end in strategy.conditions())


def phases_note(strategies: Iterable[Strategy], steps: int | None, asked: bool) -> str | None:
    """Return in words how phases, and rules that change on the way, are weighed; None where there are none.

    - `steps`: of the run, if they are known.
    - `asked`: whether the user gave their number.
    """
    every = list(strategies)
    if any(isinstance(strategy, Phases) for strategy in every):
        what, last = "phases", "the last one"
    elif any(_changing(strategy, None) for strategy in every):
        what, last = "rules that change when they exchange", "what they come to"
    else:
        return None
    if steps is None:
        return f"{what} are priced by {last}, as in a long run: --run-steps N weighs them by their shares of yours"
    told = "" if asked else ", as in the trainings whose losses were measured: --run-steps N says how many yours has"
    return f"{what} are priced in the mean over a run of {steps} steps{told}"


def _changing(strategy: Strategy, steps: int | None) -> tuple[Stretch, ...]:
    """Return the stretches of a sentence whose rule changes when it exchanges; none of all others."""
    rule = strategy.sync.make() if isinstance(strategy, Sentence) else None
    return () if rule is None or rule.cadence is not None else tuple(rule.stretches(steps))


def _ends(strategy: Phases) -> list[int] | None:
    """Return the steps at which all phases but the last end; None where one waits for something else."""
    steps = [condition.step for _, condition in strategy.parts if isinstance(condition, StepCondition)]
    return steps if len(steps) == len(strategy.parts) else None
