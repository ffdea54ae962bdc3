"""A word of a sentence: a registered technique with its arguments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, cast

from laconic import registry
from laconic.errors import StrategyError
from laconic.knobs import Knob, Technique, knobs
from laconic.literals import shown


@dataclass(frozen=True)
class Word:
    """A technique's canonical name, and the arguments that differ from its defaults: words that mean the same are
    equal."""

    axes: ClassVar[tuple[str, ...]] = registry.AXES

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        entry = registry.find(self.name)
        if entry.kind != "word" or entry.axis not in self.axes:
            raise StrategyError(_no_word(entry))
        object.__setattr__(self, "name", entry.name)
        known = {knob.name: knob for knob in knobs(self.technique)}
        given = dict(self.arguments)
        if unknown := [name for name in given if name not in known]:
            raise StrategyError(
                f"{entry.name} has no argument {shown(unknown[0])}; {_takes(entry.name, known.values())}"
            )
        if len(given) < len(self.arguments):
            raise StrategyError(f"{entry.name} is given an argument twice; {_takes(entry.name, known.values())}")
        for knob in known.values():
            if knob.default is MISSING and knob.name not in given:
                raise StrategyError(f"{entry.name} needs {knob.name}; write {entry.name}({knob.example})")
        made = self.technique(**given)
        values = {name: getattr(made, name) for name in known}
        changed = tuple((name, value) for name, value in values.items() if value != known[name].default)
        object.__setattr__(self, "arguments", changed)

    @classmethod
    def of(cls, name: str | Technique, /, *values: object, **named: object) -> Word:
        """Return a word as a sentence writes it: a name with arguments by position, then by name; or the word of a
        technique's object, whose class need not be registered."""
        if isinstance(name, Technique):
            return cls._of_object(name)
        entry = registry.find(name)
        known = () if isinstance(entry.target, str) or entry.kind != "word" else knobs(cast(type, entry.target))
        if entry.kind == "word" and len(values) > len(known):
            raise StrategyError(f"{entry.name} is given {len(values)} arguments; {_takes(entry.name, known)}")
        positional = zip((knob.name for knob in known), values, strict=False)
        return cls(name, (*positional, *named.items()))

    @classmethod
    def _of_object(cls, made: Technique) -> Word:
        kind = type(made)
        return cls(registry.name_of(kind), tuple((knob.name, getattr(made, knob.name)) for knob in knobs(kind)))

    @property
    def technique(self) -> type[Technique]:
        return cast(type[Technique], registry.find(self.name).target)

    @property
    def axis(self) -> str:
        return registry.find(self.name).axis

    def make(self) -> Any:
        """Return an instance of the technique with these arguments."""
        return self.technique(**dict(self.arguments))

    def __str__(self) -> str:
        if not self.arguments:
            return self.name
        known = knobs(self.technique)
        write = {knob.name: knob.write for knob in known}
        texts = [("" if key == known[0].name else f"{key}=") + write[key](value) for key, value in self.arguments]
        return f"{self.name}({', '.join(texts)})"


class PolicyWord(Word):
    """A policy of a cluster with its arguments, which stands alone."""

    axes = ("cluster",)

    def __post_init__(self) -> None:
        registry.find(self.name, self.axes)
        super().__post_init__()


class ScheduleWord(PolicyWord):
    """A schedule of a pipeline with its arguments, which stands alone."""

    axes = ("parallel",)


class FederatedWord(PolicyWord):
    """A rule of federated learning, or how clients reach the server, with its arguments."""

    axes = ("federated",)


def _takes(name: str, known: Iterable[Knob]) -> str:
    accepted = list(known)
    if not accepted:
        return f"it takes none: write {name}"
    return f"it takes {', '.join(knob.name for knob in accepted)}: write {name}({accepted[0].example})"


def _no_word(entry: registry.Entry) -> str:
    if entry.kind == "sentence":
        return f"{entry.name} is a whole method, not one word; write it alone or with / beside other words"
    what = "a function" if entry.kind == "function" else "a technique"
    return (
        f"{entry.name} is {what} of {entry.axis}, not a word of a sentence, which has one each of "
        f"{', '.join(registry.AXES)}; write it outside: `laconic show {entry.name}` says what it does"
    )
