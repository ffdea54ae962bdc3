"""Strategies for tables: with the settings that decide how much they change a training, which their text leaves out
where they are the defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING

from laconic import registry
from laconic.experiments.rivals.text import is_rival
from laconic.language.word import Word
from laconic.strategy import Sentence, Strategy

_WORD = re.compile(r"\w+(?:\([^()]*\))?")


def with_knobs(text: str) -> str:
    """Return a strategy's canonical text with every knob that declares which direction is gentler: `topk(0.01)` for
    `topk`. It is read as the same strategy; what another library does is left as it is."""
    if is_rival(text):
        return text
    told = {str(word): _told(word) for word in _words(Strategy.parse(text))}
    return _WORD.sub(lambda found: told.get(found[0], found[0]), text)


def _words(strategy: Strategy) -> Iterator[Word]:
    if isinstance(strategy, Sentence):
        yield from strategy.words
    for part in strategy.parts_within:
        yield from _words(part)


def _told(word: Word) -> str:
    known, given = registry.knobs(word.technique), dict(word.arguments)
    usual = {knob.name: knob.default for knob in known if knob.bounds.gentler and knob.default not in (None, MISSING)}
    values = usual | given
    texts = [
        ("" if knob is known[0] else f"{knob.name}=") + knob.write(values[knob.name])
        for knob in known
        if knob.name in values
    ]
    return f"{word.name}({', '.join(texts)})" if texts else word.name
