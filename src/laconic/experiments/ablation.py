"""Ablation: the variants of a strategy with one part removed or replaced, which `laconic ablate` runs side by side.

A part is a word, one link of a chain of compressors, a switch of a word, a knob that differs from its default, or a
phase, a level or a rule of a larger strategy. A part that cannot be removed alone is reported with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, replace
from typing import cast

from laconic.errors import StrategyError
from laconic.knobs import knobs
from laconic.language.predicates import Else
from laconic.language.word import Word
from laconic.registry import AXES
from laconic.strategy import ALWAYS_PRINTED, DEFAULTS, Map, Phases, Sentence, Strategy, Tiers


@dataclass(frozen=True)
class Variant:
    """One change of a strategy and its result: the strategy that is left, or None with the reason why none is."""

    change: str
    strategy: Strategy | None
    refusal: str = ""


def variants(strategy: Strategy) -> list[Variant]:
    """Return all variants that differ from a strategy by one part, then plain `bsp`; each resulting strategy once."""
    seen = {str(strategy)}
    found = []
    for variant in (*_of(strategy), Variant("nothing but bsp", Sentence())):
        if variant.strategy is None or str(variant.strategy) not in seen:
            seen.add(str(variant.strategy))
            found.append(variant)
    return found


def _of(strategy: Strategy) -> Iterator[Variant]:
    if isinstance(strategy, Sentence):
        yield from _without_words(strategy)
        yield from _with_other_knobs(strategy)
        return
    yield from _without_members(strategy)
    for place, inner in enumerate(strategy.parts_within):
        for variant in _of(inner):
            if variant.strategy is not None:
                yield Variant(f"{variant.change} in {_place(strategy, place)}", _put(strategy, place, variant.strategy))


# ------------------------------------------------------------------------------------------------ sentences


def _without_words(sentence: Sentence) -> Iterator[Variant]:
    for axis in AXES:
        words = sentence.on(axis)
        for place, word in enumerate(words):
            rest = words[:place] + words[place + 1 :]
            if str(word) == DEFAULTS.get(axis):
                continue
            if all(left.technique.wraps for left in rest):  # a memory around nothing
                rest = (Word(DEFAULTS[axis]),) if axis in DEFAULTS else ()
            instead = f" ({'+'.join(map(str, rest))} instead)" if len(words) == 1 and axis in ALWAYS_PRINTED else ""
            yield _tried(f"without {word}{instead}", sentence, axis, rest)


def _with_other_knobs(sentence: Sentence) -> Iterator[Variant]:
    """Yield a variant for each knob: switches that are on are turned off, other knobs go back to their defaults."""
    for axis in AXES:
        words = sentence.on(axis)
        for place, word in enumerate(words):
            given = dict(word.arguments)
            for knob in knobs(word.technique):
                now = given.get(knob.name, knob.default)
                value = False if now is True else knob.default
                if value is MISSING or value == now:
                    continue
                change = f"{word.name} with {knob.name}={knob.write(value)}"
                try:
                    other = Word(word.name, tuple((given | {knob.name: value}).items()))
                except StrategyError as error:
                    yield Variant(change, None, str(error))
                    continue
                yield _tried(change, sentence, axis, (*words[:place], other, *words[place + 1 :]))


def _tried(change: str, sentence: Sentence, axis: str, words: tuple[Word, ...]) -> Variant:
    """Return the sentence with these words on an axis.

    Where the other words cannot be combined with them, words of other axes are dropped, so that defaults take over.
    """
    whole = {name: sentence.on(name) for name in AXES} | {axis: words}
    kept = [name for name in AXES if whole[name]]
    refusal = ""
    for left_out in ((), ("architecture", "topology"), ("compression", "architecture", "topology")):
        if axis in left_out:
            continue
        given = [whole[name] if name == "compression" else whole[name][0] for name in kept if name not in left_out]
        try:
            return Variant(change, Sentence.of(*given))
        except StrategyError as error:
            refusal = refusal or str(error)
    return Variant(change, None, refusal)


# ------------------------------------------------------------------------------------------------ larger shapes


def _without_members(strategy: Strategy) -> Iterator[Variant]:
    """Yield a variant without each phase, with plain `bsp` on each level, and without each rule of a map."""
    if isinstance(strategy, Phases):
        whole = [*strategy.parts, (strategy.last, None)]
        for place in range(len(whole)):
            rest = whole[:place] + whole[place + 1 :]
            parts = tuple((inner, condition) for inner, condition in rest[:-1] if condition is not None)
            left = Phases(parts, rest[-1][0]) if parts else rest[-1][0]
            yield Variant(f"without {_place(strategy, place)}", left)
    elif isinstance(strategy, Tiers):
        for place in range(len(strategy.levels)):
            yield Variant(f"bsp in {_place(strategy, place)}", _put(strategy, place, Sentence()))
    elif isinstance(strategy, Map):
        for place, (selector, _) in enumerate(strategy.rules):
            if selector != Else():
                rules = strategy.rules[:place] + strategy.rules[place + 1 :]
                left = Map(rules) if len(rules) > 1 else rules[0][1]
                yield Variant(f"without {_place(strategy, place)}", left)


def _place(strategy: Strategy, place: int) -> str:
    if isinstance(strategy, Tiers):
        return f"level {strategy.levels[place][1]}"
    if isinstance(strategy, Map):
        return f"rule {strategy.rules[place][0]}"
    return f"phase {place + 1}"


def _put(strategy: Strategy, place: int, inner: Strategy) -> Strategy:
    """Return the strategy with the part at one place replaced by another strategy."""
    if isinstance(strategy, Tiers):
        levels = list(strategy.levels)
        levels[place] = (inner, levels[place][1])
        return Tiers(tuple(levels))
    if isinstance(strategy, Map):
        rules = list(strategy.rules)
        rules[place] = (rules[place][0], inner)
        return Map(tuple(rules))
    phases = cast(Phases, strategy)
    if place == len(phases.parts):
        return replace(phases, last=inner)
    parts = list(phases.parts)
    parts[place] = (inner, parts[place][1])
    return replace(phases, parts=tuple(parts))
