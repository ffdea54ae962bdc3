"""All checks of a technique: which apply to it, and where the techniques of a file or a name are found."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import MISSING, dataclass, is_dataclass
from types import ModuleType

from laconic import registry
from laconic.check import compressors, engines, schedules
from laconic.check.finding import Finding, look
from laconic.compression.base import Compressor
from laconic.compression.wrapper import Wrapping
from laconic.errors import LaconicError
from laconic.knobs import Technique, knobs
from laconic.language.tokenizer import Reader
from laconic.language.word import Word
from laconic.places import is_place, module_at
from laconic.schedule.base import Schedule
from laconic.strategy import Sentence, Strategy

_INNER = (("topk", 0.1), ("qsgd",), ("cast_int8",))
"""What stands before a word that wraps others."""


@dataclass(frozen=True)
class Checked:
    """A technique, the sentence in which it was tried, and what was found."""

    name: str
    sentence: str
    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        return all(finding.holds for finding in self.findings)


def check(source: str, real: bool = True) -> Iterator[Checked]:
    """Check every technique of a Python file or module, or the one word that is written; each is yielded when done.

    `source` is a file (`codecs/mine.py`), a module (`my_package.codecs`), or a word with or without arguments
    (`topk(0.1)`, `codecs/mine.py:Mine`). With `real`, a training on two processes is compared with virtual workers.
    """
    for word in _words(source):
        yield check_word(word, real)


def check_word(word: Word, real: bool = True) -> Checked:
    """Check one word of a sentence with its arguments."""
    made = word.make()
    try:
        sentence = _tried(word, made)
    except LaconicError as error:
        return Checked(str(word), "", (Finding("It can stand in a sentence.", f"it is refused: {error}"),))
    found = look([can_be_written], sentence)
    if isinstance(made, Compressor):
        compressor: Compressor = sentence.compressor
        if compressor.meets != "edge":
            claims = () if isinstance(made, Wrapping) else compressors.claims_of(made)
            found += compressors.findings(compressor, claims)
    if isinstance(made, Schedule):
        found += schedules.findings(made)
    found += engines.findings(sentence, real)
    return Checked(str(word), str(sentence), tuple(found))


def can_be_written(sentence: Sentence) -> str | None:
    """Its sentence is read back from its own text."""
    text = str(sentence)
    return None if Strategy.parse(text) == sentence else f"`{text}` is read as `{Strategy.parse(text)}`"


def _tried(word: Word, made: Technique) -> Sentence:
    """Return a sentence around the word; a word that wraps others stands behind the first codec that it accepts."""
    if not made.wraps:
        return Sentence.of(word)
    for inner in _INNER[:-1]:
        with suppress(LaconicError):
            return Sentence.of((Word.of(*inner), word))
    return Sentence.of((Word.of(*_INNER[-1]), word))


def _words(source: str) -> list[Word]:
    if source.endswith(".py") or ("." in source and not is_place(source) and "(" not in source):
        registry.extend(source)
        return _defined_in(module_at(source), source)
    return [_one_word(source)]


def _one_word(source: str) -> Word:
    reader = Reader(source)
    name = reader.advance().text if reader.token.kind in ("name", "place") else ""
    positional, named = reader.arguments(name)
    if not name or reader.token.kind != "end":
        raise LaconicError(f"{source} is not one word; write a file, a module, or a technique such as topk(0.1)")
    return Word.of(name, *positional, **named)


def _defined_in(module: ModuleType, source: str) -> list[Word]:
    """Return a word for every technique that a module defines, registered or not, with its defaults."""
    kinds = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Technique) and kind.__module__ == module.__name__
        if is_dataclass(kind) and not inspect.isabstract(kind) and not kind.__name__.startswith("_")
        if kind.axis in registry.AXES
    ]
    if not kinds:
        raise LaconicError(f"{source} defines no technique; derive one from a base class of laconic.extend")
    return [_with_defaults(kind) for kind in dict.fromkeys(kinds)]


def _with_defaults(kind: type[Technique]) -> Word:
    required = {knob.name: knob.fit_example for knob in knobs(kind) if knob.default is MISSING}
    return Word(registry.name_of(kind), tuple(required.items()))
