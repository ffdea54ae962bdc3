"""The register of techniques, in which each technique is declared once.

Command line, strategies, docs, property tests and benchmarks all read this register, so adding a technique touches one
file. A technique is a *word* (a frozen dataclass whose fields are its knobs), a *sentence* (a complete method, as text)
or a *function* (a bound, a model, a benchmark).
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, Literal, TypeVar, cast

from laconic.errors import LaconicError, StrategyError
from laconic.knobs import Knob, Technique, knob, knobs, unwritable
from laconic.literals import NAME, shown
from laconic.places import class_at, is_place, module_at, place_of

__all__ = [
    "AXES",
    "OTHER_AXES",
    "Entry",
    "Evidence",
    "Knob",
    "Technique",
    "compose",
    "composes",
    "entries",
    "entry_of",
    "extend",
    "find",
    "is_registered",
    "knob",
    "knobs",
    "load",
    "name_of",
    "named_sentence",
    "normal",
    "technique",
    "temporary",
]

AXES = ("sync", "compression", "architecture", "schedule", "protocol", "topology")
OTHER_AXES = ("parallel", "cluster", "serve", "theory", "federated")

EXTENSIONS = "LACONIC_EXTENSIONS"
"""The variable by which a process hands its extensions to those that it starts; people write --extend."""

Target = TypeVar("Target", bound=Callable[..., Any])


class Evidence(StrEnum):
    """What a technique's behaviour was compared with, the strongest first."""

    FIXTURE = "fixture"
    """It gives what the authors' own program gave on recorded inputs."""
    THIRD_PARTY = "third-party"
    """It gives what another's implementation of the paper gave on recorded inputs."""
    PUBLISHED = "published"
    """It reproduces a result that a paper reports of it: a loss, a speed-up, an order."""
    MECHANISM = "mechanism"
    """It does what the paper says; a format, an identity or a constant may be held, and no result is."""
    MODELLED = "modelled"
    """It needs hardware that is not here: the formulas of a model of it are tested."""

    @property
    def is_reproduced(self) -> bool:
        """Tell whether numbers that somebody else found are found again."""
        return self in (Evidence.FIXTURE, Evidence.THIRD_PARTY, Evidence.PUBLISHED)


@dataclass(frozen=True)
class Entry:
    """A registered technique; `target` is the word's class, the function, or the sentence's text."""

    name: str
    axis: str
    kind: Literal["word", "sentence", "function"]
    paper: str
    evidence: Evidence
    claims: tuple[object, ...]
    aliases: tuple[str, ...]
    target: Callable[..., Any] | str
    doc: str
    module: str
    reproduces: str = ""
    """The results that are reproduced, where the evidence is more than the mechanism: a recorded file, with the word or
    sentence that gives its numbers, or a result of a paper."""
    holds: str = ""
    """What else of the paper a test finds, and is no result: a format, an identity, a constant, a model's formula."""
    formula: str = ""
    """What the technique does to a tensor, in one line."""
    worth_trying: tuple[str, ...] = ()
    """The settings of a word that are worth trying, as texts: what `laconic plan` prices where nobody names any."""
    why_no_word: str = ""
    """Why no sentence can say it, where it is a function, and what trains in its place; a whole sentence."""

    def __post_init__(self) -> None:
        if self.evidence.is_reproduced != bool(self.reproduces):
            raise LaconicError(
                f'{self.place} declares the evidence "{self.evidence}" and reproduces "{self.reproduces}"; say what is '
                "reproduced where the evidence is fixture, third-party or published, and only there"
            )
        if self.why_no_word and self.kind != "function":
            raise LaconicError(f"{self.place} can stand in a sentence; leave out why it could not (`why_no_word`)")
        if self.evidence is Evidence.MODELLED and not self.holds:
            raise LaconicError(f"{self.place} is modelled and holds nothing; say which of its formulas are tested")
        if self.axis not in AXES + OTHER_AXES:
            raise LaconicError(
                f'{self.place} is on the axis "{self.axis}"; write one of {", ".join(AXES + OTHER_AXES)}'
            )
        if not self.doc:
            raise LaconicError(f"{self.place} has no docstring; write one: `laconic list` shows its first line")
        for name in self.names:
            if not re.fullmatch(NAME, name) and not is_place(name):
                raise LaconicError(f'"{name}" ({self.place}) is not a name; use letters, digits and underscores')

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def summary(self) -> str:
        return self.doc.splitlines()[0]

    @property
    def place(self) -> str:
        return f"{self.module}.{getattr(self.target, '__qualname__', self.name)}"

    def answers_to(self, names: Iterable[str]) -> bool:
        """Tell whether one of these names is a name or an alias of this entry."""
        return not {normal(name) for name in self.names}.isdisjoint(map(normal, names))


_entries: dict[str, Entry] = {}
_composers: dict[type, Callable[[Sequence[Any]], Any]] = {}


@cache
def normal(name: str) -> str:
    """Return a name in its normal form: names match whatever their case, underscores, dashes and spaces."""
    return re.sub(r"[_\-\s]", "", name).lower()


def technique(
    name: str,
    *,
    paper: str,
    axis: str | None = None,
    claims: Iterable[object] = (),
    evidence: Evidence | str = Evidence.MECHANISM,
    aliases: Iterable[str] = (),
    reproduces: str = "",
    holds: str = "",
    formula: str = "",
    worth_trying: Iterable[str] = (),
    why_no_word: str = "",
) -> Callable[[Target], Target]:
    """Register the word class (above `@dataclass(frozen=True)`) or the plain function below it.

    A word that lists settings in `worth_trying` is among the candidates of `laconic plan`. They are texts such as
    `topk(0.1)+ef`: of a compressor a chain, of a schedule or an architecture a word, of a sync rule a word (tried with
    every compression) or a sentence (tried as it is). `why_no_word` says of a function, in a whole sentence, why it is
    no word, and what trains in its place.
    """

    def register(target: Target) -> Target:
        kind: Literal["word", "function"] = "function"
        if isinstance(target, type):
            kind = "word"
            _check_word(target)
        doc = _written_doc(target)
        home = str(axis or getattr(target, "axis", ""))
        grade = _evidence(evidence)
        module = target.__module__
        facts = (tuple(claims), tuple(aliases), target, doc, module, reproduces, holds, formula, tuple(worth_trying))
        _register(Entry(name, home, kind, paper, grade, *facts, why_no_word))
        if isinstance(target, type) and issubclass(target, Technique):
            target.name = name
        return target

    return register


def _check_word(target: type) -> None:
    """Refuse a class that cannot be a word of a sentence."""
    if not (issubclass(target, Technique) and is_dataclass(target)):
        raise LaconicError(
            f"{target.__module__}.{target.__qualname__} is no word; derive it from its family's base class "
            "and put @dataclass(frozen=True) below @technique"
        )
    if wrong := unwritable(target):
        raise LaconicError(
            f"no sentence can write {', '.join(wrong)} of {target.__module__}.{target.__qualname__}; annotate "
            "knobs as int, float, bool, str, None or a tuple[X, ...] of these, with a plain default"
        )


def _written_doc(target: Callable[..., Any]) -> str:
    """Return the docstring that somebody wrote: @dataclass writes the signature where there is none."""
    doc = inspect.cleandoc(target.__doc__ or "")
    return "" if doc.startswith(f"{target.__name__}(") else doc


def named_sentence(
    name: str,
    text: str,
    *,
    axis: str,
    paper: str,
    doc: str,
    evidence: Evidence | str = Evidence.MECHANISM,
    aliases: Iterable[str] = (),
    claims: Iterable[object] = (),
    reproduces: str = "",
    holds: str = "",
    formula: str = "",
) -> None:
    """Register a complete method; its text is parsed when it is used, so it may name words that are not imported
    yet."""
    module = sys._getframe(1).f_globals["__name__"]
    grade = _evidence(evidence)
    facts = (tuple(claims), tuple(aliases), text, inspect.cleandoc(doc), module, reproduces, holds, formula)
    _register(Entry(name, axis, "sentence", paper, grade, *facts))


def composes(kind: type[Technique]) -> Callable[[Target], Target]:
    """Register the function below it as the one that turns a chain of words of this kind into one word."""

    def register(composer: Target) -> Target:
        _composers[kind] = composer
        return composer

    return register


def compose(words: Sequence[Any]) -> Any:
    """Return the one word that a chain of words becomes; raise an error where they cannot be chained."""
    load()
    composer = next((_composers[kind] for kind in type(words[0]).__mro__ if kind in _composers), None)
    return words[-1] if composer is None else composer(words)


def _evidence(evidence: Evidence | str) -> Evidence:
    if evidence not in list(Evidence):
        raise LaconicError(f'"{evidence}" is no evidence; write one of {", ".join(Evidence)}')
    return Evidence(evidence)


def _register(entry: Entry) -> None:
    for name in entry.names:
        other = _entries.get(normal(name))
        reloaded = other and other.place == entry.place and (other.kind != "sentence" or other.target == entry.target)
        if other and not reloaded:
            raise LaconicError(f'"{name}" of {entry.place} is already the name of {other.place}; rename one of them')
    _entries.update({normal(name): entry for name in entry.names})
    _sorted.cache_clear()


def find(name: str, axes: Iterable[str] | None = None) -> Entry:
    """Return the technique that answers to `name`, which must be on one of `axes` where they are given."""
    load()
    entry = _at_place(name) if is_place(name) else _entries.get(normal(name))
    if entry is None:
        load_rarely_written()
        entry = _entries.get(normal(name))
    homes = AXES + OTHER_AXES if axes is None else tuple(axes)
    if entry is None:
        known = {key: entry.name for key, entry in _entries.items() if entry.axis in homes}
        near = dict.fromkeys(known[key] for key in difflib.get_close_matches(normal(name), known, n=5))
        advice = f"write {' or '.join(list(near)[:3])}" if near else "`laconic list` shows every name"
        raise StrategyError(f"no technique is called {shown(name)}; {advice}")
    if entry.axis not in homes:
        raise StrategyError(f"{entry.name} belongs to {entry.axis}, not to {' or '.join(homes)}; see `laconic list`")
    return entry


@cache
def _at_place(place: str) -> Entry:
    """Return an entry for a class that nobody registered, from the place at which it stands."""
    found = class_at(place)
    if not isinstance(found, type):
        raise StrategyError(f"{place} is no class; write the class of a technique")
    _check_word(found)
    target = cast(type[Technique], found)
    if "name" not in vars(target):
        target.name = place
    doc = _written_doc(target) or "A class without a docstring."
    facts = (Evidence.MECHANISM, (), (), target, doc, target.__module__)
    return Entry(place, target.axis, "word", "", *facts)


def extend(source: str) -> None:
    """Import a file or a module that registers techniques, here and in every process that this one starts."""
    load()
    load_rarely_written()
    module_at(source)
    absolute = str(Path(source).expanduser().resolve()) if source.endswith(".py") else source
    known = _extensions()
    if absolute not in known:
        os.environ[EXTENSIONS] = os.pathsep.join([*known, absolute])


def _extensions() -> list[str]:
    return list(filter(None, os.environ.get(EXTENSIONS, "").split(os.pathsep)))


def is_registered(kind: type[Technique]) -> bool:
    """Tell whether a class is a registered word."""
    entry = _entries.get(normal(kind.name))
    return entry is not None and entry.target is kind


def entry_of(target: Callable[..., Any]) -> Entry:
    """Return the entry of a registered word class or function."""
    return next(entry for entry in entries() if entry.target is target)


def name_of(kind: type[Technique]) -> str:
    """Return how a sentence names a word class: by its registered name, or by its place where it has none."""
    return kind.name if is_registered(kind) else place_of(kind)


def entries(axis: str | None = None) -> tuple[Entry, ...]:
    """Return every technique once, by axis and name."""
    load()
    if axis not in AXES:
        load_rarely_written()
    return _sorted(axis)


@cache
def _sorted(axis: str | None) -> tuple[Entry, ...]:
    """Return the sorted entries, cached until something is registered or removed."""
    order = AXES + OTHER_AXES
    unique = {entry.name: entry for entry in _entries.values() if axis in (None, entry.axis)}
    return tuple(sorted(unique.values(), key=lambda entry: (order.index(entry.axis), entry.name)))


_WITHOUT_TECHNIQUES = "laconic.cluster.ray."
"""What imports a package that need not be installed."""


@cache
def load() -> None:
    """Import, once, every module that may hold a word of a sentence: this library's, those that the process which
    started this one was extended by, and the entry points `laconic.techniques`."""
    for package in (*AXES, "theory", "cost", "collective"):
        _import_all(package)
    points = entry_points(group="laconic.techniques")
    if _extensions() or points:
        load_rarely_written()  # so that a name that is taken is refused where it is taken again
    for source in _extensions():
        module_at(source)
    for point in points:
        try:
            point.load()
        except Exception as error:
            raise LaconicError(
                f"the plug-in {point.name} ({point.value}) fails on import: {error}; mend or uninstall it"
            ) from error


@cache
def load_rarely_written() -> None:
    """Import, once, policies of clusters, rules of federated learning and schedules of pipelines, which no sentence of
    a strategy names: where somebody asks for them, or for all."""
    for package in ("cluster", "federated", "parallel"):
        _import_all(package)


def _import_all(package: str) -> None:
    if find_spec(family := f"laconic.{package}"):
        for module in walk_packages(getattr(import_module(family), "__path__", ()), f"{family}."):
            if not module.name.startswith(_WITHOUT_TECHNIQUES):
                import_module(module.name)


@contextmanager
def temporary(*, empty: bool = False) -> Iterator[None]:
    """Undo, on leaving, what was registered inside, such as a test's own words. `empty` starts from no words at all."""
    load()
    load_rarely_written()
    saved = dict(_entries)
    if empty:
        _entries.clear()
        _sorted.cache_clear()
    try:
        yield
    finally:
        _entries.clear()
        _entries.update(saved)
        _sorted.cache_clear()
