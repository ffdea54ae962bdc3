"""A strategy: what a training method communicates, when, and to whom, as a frozen value that is also text.

It is a sentence of six words, or one of three shapes built of strategies: tiers over a mesh, a map over parameters,
phases over time. Constructors check, so that what exists can run; `Strategy.parse(str(s)) == s` for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from itertools import pairwise
from typing import Any, cast

from laconic import registry
from laconic.errors import StrategyError
from laconic.knobs import Technique
from laconic.language.grammar import DEEPEST, Shapes, parse
from laconic.language.predicates import (
    Condition,
    Else,
    Glob,
    MetricCondition,
    ParameterSelector,
    Role,
    Shape,
    StepCondition,
)
from laconic.language.word import Word
from laconic.literals import NAME, shown
from laconic.registry import AXES

__all__ = [
    "Condition",
    "Else",
    "Glob",
    "Map",
    "MetricCondition",
    "ParameterSelector",
    "Phases",
    "Role",
    "Sentence",
    "Shape",
    "StepCondition",
    "Strategy",
    "Tiers",
    "Word",
]

DEFAULTS = {"sync": "bsp", "compression": "none", "architecture": "allreduce", "schedule": "wfbp"}
Piece = Word | Technique | tuple[Word | Technique, ...]
"""What a sentence is made of: a word, the object of a technique, or a chain of these."""
ALWAYS_PRINTED = ("sync", "compression", "architecture")
ERROR_FEEDBACK = "error_feedback"
_ASKED = {
    "average": "means over all workers",
    "mix": "neighbours to mix with",
    "server": "a server",
    "shared": "memory that all workers share",
}
"""What a sync rule may ask of the architecture, as error messages name it."""


class Strategy:
    """A training method as a value: `Strategy.parse("local(8) / topk(0.01)+ef")`, and `str` gives the text back.

    This is the base class of its shapes: a sentence, tiers, a map over parameters, phases.
    """

    @classmethod
    def parse(cls, text: str | Strategy | Technique) -> Strategy:
        """Return the strategy that `text` describes; a strategy is returned as it is, and the object of a technique is
        a sentence of one word."""
        if isinstance(text, Strategy):
            return text
        if isinstance(text, Technique):
            return Sentence.of(text)
        if not isinstance(text, str):
            raise StrategyError(f'a strategy is text, not {shown(text)}; write "bsp / none / allreduce", for example')
        return cast(Strategy, parse(text, _SHAPES))

    @property
    def parts_within(self) -> tuple[Strategy, ...]:
        """Return the strategies that this one is made of."""
        return ()

    def conditions(self) -> tuple[Condition, ...]:
        """Return every condition that ends a phase somewhere in the strategy, each once."""
        return tuple(dict.fromkeys(condition for inner in self.parts_within for condition in inner.conditions()))

    def __repr__(self) -> str:
        return f"Strategy.parse({str(self)!r})"

    def _check_within(self) -> None:
        for inner in self.parts_within:
            if not isinstance(inner, Strategy):
                raise StrategyError(
                    f"{type(self).__name__} holds strategies, not {shown(inner)}; use Strategy.parse(...)"
                )
        if _depth(self) > DEEPEST:
            raise StrategyError(f"strategies are nested more than {DEEPEST} deep; write fewer levels")


def _depth(strategy: Strategy) -> int:
    return 1 + max(map(_depth, strategy.parts_within), default=0)


@dataclass(frozen=True, repr=False)
class Sentence(Strategy):
    """Six words: a method exploits sync with compression, runs on an architecture with a schedule, over a protocol and
    a topology."""

    sync: Word = field(default_factory=lambda: Word("bsp"))
    compression: tuple[Word, ...] = field(default_factory=lambda: (Word("none"),))
    architecture: Word = field(default_factory=lambda: Word("allreduce"))
    schedule: Word = field(default_factory=lambda: Word("wfbp"))
    protocol: Word | None = None
    topology: Word | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "compression", tuple(self.compression))
        for axis in AXES:
            for word in self.on(axis):
                if not isinstance(word, Word):
                    raise StrategyError(f"{shown(word)} is no Word; write Word.of({shown(word)})")
                if word.axis != axis:
                    raise StrategyError(
                        f"{word} is a word of {word.axis}, not of {axis}; use Sentence.of({word.name}, ...)"
                    )
        _check_chain(self.compression)
        self._check_company()

    @classmethod
    def of(cls, *words: Piece) -> Sentence:
        """Return the sentence of these words, in any order; a tuple is a chain of compression. Objects of techniques
        may stand among them, whether their class is registered or not.

        Axes without a word take their default, or what the given words need in its place.
        """
        return cls(**_completed(_by_axis(words)))

    def but(self, *words: Piece) -> Sentence:
        """Return the sentence with these words in place of its own."""
        return replace(self, **_by_axis(words))

    def on(self, axis: str) -> tuple[Word, ...]:
        """Return the words that stand on an axis: one, a chain, or none."""
        found = getattr(self, axis)
        return found if isinstance(found, tuple) else () if found is None else (found,)

    @property
    def words(self) -> tuple[Word, ...]:
        return tuple(word for axis in AXES for word in self.on(axis))

    @property
    def chain(self) -> str:
        """The chain of compression as text."""
        return "+".join(map(str, self.compression))

    @property
    def compressor(self) -> Any:
        """The compressor that the chain of compression becomes."""
        return _composed(self.compression)

    def _check_company(self) -> None:
        """Refuse words that cannot stand together, and name a sentence that can be written instead."""
        words = {axis: self.on(axis) for axis in AXES}
        if clash := _clash(words):
            trials = (words | {clash.axis: candidate} for candidate in clash.candidates)
            fitting = next((_text(trial) for trial in trials if not _clash(trial)), None)
            advice = f"write {fitting}" if fitting else f"write other words: see `laconic list {clash.axis}`"
            raise StrategyError(f"{clash.reason}; {advice}")

    def __str__(self) -> str:
        return _text({axis: self.on(axis) for axis in AXES})


def _text(words: Mapping[str, tuple[Word, ...]]) -> str:
    texts = {axis: "+".join(map(str, words[axis])) for axis in AXES}
    return " / ".join(text for axis, text in texts.items() if axis in ALWAYS_PRINTED or text != DEFAULTS.get(axis, ""))


@dataclass(frozen=True)
class _Clash:
    """Why words cannot stand together, and what could stand on an axis instead."""

    reason: str
    axis: str
    candidates: Sequence[tuple[Word, ...]]


def _clash(words: Mapping[str, tuple[Word, ...]]) -> _Clash | None:
    (sync,), (architecture,) = words["sync"], words["architecture"]
    if sync.technique.talks not in architecture.technique.offers:
        needed = _offering(sync)
        reason = f"{sync} needs {_ASKED[sync.technique.talks]}, which {architecture} does not offer"
        return _Clash(reason, "architecture", [(Word(name),) for name in needed])
    if not _carries(architecture, words["compression"]):
        fitting = [(w,) for w in _bare_words("architecture") if _carries(w, words["compression"])]
        chained = "+".join(map(str, words["compression"]))
        return _Clash(f"{chained} meets in a way that {architecture} cannot carry out", "architecture", fitting)
    if reason := sync.make().objects_to(_composed(words["compression"])):
        return _Clash(reason, "compression", [(w,) for w in _bare_words("compression")])
    for word in (word for axis in AXES for word in words[axis]):
        for axis, needed in word.technique.needs.items():
            others = [other for other in words[axis] if other != word]
            if not words[axis] or not all(not needed or _is_one_of(other, needed) for other in others):
                has = f"has {'+'.join(map(str, words[axis]))}" if words[axis] else "names none"
                wanted = f"the {axis} {' or '.join(needed)}" if needed else f"a {axis}"
                reason = f"{word} needs {wanted}, and this sentence {has}"
                fitting = [(w,) for w in _bare_words(axis) if not needed or _is_one_of(w, needed)]
                return _Clash(reason, axis, fitting)
        for axis, refused in word.technique.refuses.items():
            for other in words[axis]:
                if other != word and _is_one_of(other, refused):
                    nothing: list[tuple[Word, ...]] = [] if axis in DEFAULTS else [()]
                    free = [(w,) for w in _bare_words(axis) if not _is_one_of(w, refused)]
                    return _Clash(f"{word} cannot go with {other}", axis, [*nothing, *free])
    return None


def _carries(architecture: Word, chain: tuple[Word, ...]) -> bool:
    """Tell whether an architecture can carry out every kind of meeting that a chain of compression asks for."""
    carried = architecture.technique.carries
    return carried is None or set(_composed(chain).asks) <= set(carried)


def _is_one_of(word: Word, names: Iterable[str]) -> bool:
    return registry.find(word.name).answers_to(names)


def _bare_words(axis: str) -> list[Word]:
    """Return the words that can stand on an axis without arguments, the default first."""
    entries = registry.entries(axis)
    known = _bare.get(axis)
    if known is None or known[0] is not entries:
        known = _bare[axis] = (entries, _made_bare(axis, entries))
    return known[1]


_bare: dict[str, tuple[tuple[registry.Entry, ...], list[Word]]] = {}
"""A cache of these words for each axis, valid while the axis has these entries."""


def _made_bare(axis: str, entries: tuple[registry.Entry, ...]) -> list[Word]:
    names = [
        entry.name
        for entry in entries
        if entry.kind == "word" and not cast(type[Technique], entry.target).wraps
        if all(knob.default is not MISSING for knob in registry.knobs(cast(type, entry.target)))
    ]
    return [Word(name) for name in sorted(names, key=lambda name: name != DEFAULTS.get(axis))]


def _by_axis(words: Iterable[Piece]) -> dict[str, Any]:
    placed: dict[str, tuple[Word, ...]] = {}
    for item in words:
        pieces = item if isinstance(item, tuple) else (item,)
        chain = tuple(Word.of(piece) if isinstance(piece, Technique) else piece for piece in pieces)
        if len(chain) > 1 and (apart := [str(word) for word in chain if word.axis != "compression"]):
            chained = "+".join(str(word) for word in chain if word.axis == "compression")
            advice = " / ".join(filter(None, [*apart, chained]))
            raise StrategyError(f'only compression is chained with "+", not {apart[0]}; write {advice}')
        axis = chain[0].axis
        if axis in placed:
            first, second = ("+".join(map(str, words)) for words in (placed[axis], chain))
            advice = f"write {first} or {second}" + (", or chain them as in bf16+ef" if axis == "compression" else "")
            raise StrategyError(f"{first} and {second} are both {axis}, and a sentence has one word of it; {advice}")
        placed[axis] = chain
    return {axis: chain if axis == "compression" else chain[0] for axis, chain in placed.items()}


def _completed(placed: dict[str, Any]) -> dict[str, Any]:
    """Return the words completed by what they need on axes that were left out: `ssp` alone adds its server."""
    given: dict[str, tuple[Word, ...]] = {
        axis: words if axis == "compression" else (words,) for axis, words in placed.items()
    }
    for axis in ("architecture", *AXES):  # a rule and its architecture ask for each other
        if axis in placed or axis == "compression":
            continue
        words = [word for place in AXES for word in given.get(place, ())]  # what stands earlier asks first
        needed = [names for word in words if (names := word.technique.needs.get(axis)) is not None]
        if axis == "architecture" and "sync" in given:
            needed += [_offering(given["sync"][0])]
        if axis == "sync" and "architecture" in given:
            needed += [_asking(given["architecture"][0])]
        wishes = [Word(wish) for word in words if (wish := word.technique.prefers.get(axis)) is not None]
        if axis == "architecture" and wishes and "compression" in given:
            wishes = [word for word in wishes if _carries(word, given["compression"])]
        candidates = [*wishes, *_bare_words(axis)]
        fitting = (w for w in candidates if all(not names or _is_one_of(w, names) for names in needed))
        if (needed or wishes) and (word := next(fitting, None)) is not None:
            given[axis] = (word,)
            placed = {**placed, axis: word}
    return placed


def _offering(sync: Word) -> tuple[str, ...]:
    """Return the architectures that offer what a sync rule asks for."""
    return tuple(w.name for w in _bare_words("architecture") if sync.technique.talks in w.technique.offers)


def _asking(architecture: Word) -> tuple[str, ...]:
    """Return the sync rules that ask for what an architecture offers."""
    return tuple(w.name for w in _bare_words("sync") if w.technique.talks in architecture.technique.offers)


def _check_chain(chain: tuple[Word, ...]) -> None:
    others = [word for word in chain if word.name != ERROR_FEEDBACK]
    if all(word.technique.wraps for word in chain):
        what = "+".join(word.name for word in others) or "error feedback"
        around = f"{others[0].name}+topk" if others and getattr(others[0].technique, "joins", False) else "bf16+ef"
        raise StrategyError(f"{what} needs a compressor to wrap; write {around}, or none for no compression")
    if len(chain) > 1 and any(word.name == "none" for word in chain):
        without = [str(word) for word in others if word.name != "none"]
        raise StrategyError(f"none stands alone, it compresses nothing; write {'+'.join(without) or 'none'}")
    if ERROR_FEEDBACK in (word.name for word in chain[:-1]):
        last = next(word for word in chain if word.name == ERROR_FEEDBACK)
        order = "+".join(map(str, [*others, last]))
        raise StrategyError(f"error feedback wraps the whole chain, so it comes once and last; write {order}")
    _composed(chain)


def _composed(chain: tuple[Word, ...]) -> Technique:
    """Return the compressor that a chain of compression becomes."""
    compressor: Technique = registry.compose([word.make() for word in chain])
    return compressor


@dataclass(frozen=True, repr=False)
class Tiers(Strategy):
    """A strategy for each dimension of a device mesh, inner to outer."""

    levels: tuple[tuple[Strategy, str], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(map(tuple, self.levels)))
        names = [name for _, name in self.levels]
        if not names:
            raise StrategyError("tiers without a level; write [bsp]@node, for example")
        for name in names:
            if not re.fullmatch(NAME, name):
                raise StrategyError(f"{shown(name)} is no name of a tier; write a mesh dimension, such as @node")
            if names.count(name) > 1:
                raise StrategyError(f"two tiers are called {name}; write another mesh dimension for one of them")
        self._check_within()

    @property
    def parts_within(self) -> tuple[Strategy, ...]:
        return tuple(strategy for strategy, _ in self.levels)

    def __str__(self) -> str:
        return " > ".join(f"[{strategy}]@{name}" for strategy, name in self.levels)


@dataclass(frozen=True, repr=False)
class Map(Strategy):
    """A strategy for each parameter, by its role, shape or name; the first rule that matches counts."""

    rules: tuple[tuple[ParameterSelector, Strategy], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(map(tuple, self.rules)))
        selectors = [selector for selector, _ in self.rules]
        if Else() not in selectors:
            raise StrategyError("a parameter that no rule matches would have no strategy; end the map with else: none")
        for selector in selectors:
            if selectors.count(selector) > 1:
                raise StrategyError(f"the second rule for {selector} can never apply; write one rule for it")
        if selectors[-1] != Else():
            after = selectors[selectors.index(Else()) + 1]
            raise StrategyError(f"the rule for {after} can never apply after else; write else last")
        self._check_within()

    @property
    def parts_within(self) -> tuple[Strategy, ...]:
        return tuple(strategy for _, strategy in self.rules)

    def choose(self, name: str, shape: tuple[int, ...], role: str) -> Strategy:
        """Return the strategy of a parameter."""
        return next(strategy for selector, strategy in self.rules if selector.matches(name, shape, role))

    def __str__(self) -> str:
        return f"{{{', '.join(f'{selector}: {_grouped(strategy)}' for selector, strategy in self.rules)}}}"


@dataclass(frozen=True, repr=False)
class Phases(Strategy):
    """One strategy after another: each until its condition holds, then `last` to the end."""

    parts: tuple[tuple[Strategy, Condition], ...]
    last: Strategy

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(map(tuple, self.parts)))
        if not self.parts:
            raise StrategyError("phases without a condition; write bsp until step 500, then bf16, for example")
        steps = [condition.step for _, condition in self.parts if isinstance(condition, StepCondition)]
        for earlier, later in pairwise(steps):
            if later <= earlier:
                raise StrategyError(f"step {later} is over when step {earlier} is; write a step above {earlier}")
        self._check_within()

    @property
    def parts_within(self) -> tuple[Strategy, ...]:
        return (*(strategy for strategy, _ in self.parts), self.last)

    def conditions(self) -> tuple[Condition, ...]:
        return tuple(dict.fromkeys((*(condition for _, condition in self.parts), *super().conditions())))

    def __str__(self) -> str:
        started = (f"{_grouped(strategy)} until {condition}, then" for strategy, condition in self.parts)
        return f"{' '.join(started)} {_grouped(self.last)}"


def _grouped(strategy: Strategy) -> str:
    return f"[{strategy}]" if isinstance(strategy, Phases) else str(strategy)


_SHAPES = Shapes(sentence=Sentence.of, tiers=Tiers, map=Map, phases=Phases)
