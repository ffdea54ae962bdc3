"""Knobs, the hyper-parameters of techniques: which values one may hold, and the base class that checks them.

A knob is a literal that a sentence can write. Its type, bounds and line of documentation are declared where the field
is; the check, the error message and `laconic show` all read that one declaration. The checks are written out because
msgspec's, with numbers converted first as here, read a sentence 16 % slower.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Literal

from laconic.errors import StrategyError
from laconic.literals import literal, real, shown, whole

Gentler = Literal["more", "less"]


@dataclass(frozen=True)
class Bounds:
    """The values a knob may take: `low` and `high` included, `above` and `below` not.

    `gentler` says which values change the result less: where nobody has measured what a technique does to the loss, the
    planner shows the gentler of two settings that are as good.
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[object, ...] | None = None
    doc: str = ""
    gentler: Gentler | None = None

    def admit(self, value: object) -> bool:
        """Whether `value`, or each element of a tuple, lies within the bounds; None always does."""
        if value is None:
            return True
        if isinstance(value, tuple):
            return all(map(self.admit, value))
        if self.choices is not None:
            return value in self.choices
        if not isinstance(value, int | float):
            return True
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self.choices is not None:
            return f"one of {', '.join(map(literal, self.choices))}"
        limits = {"at least": self.low, "above": self.above, "at most": self.high, "below": self.below}
        return " and ".join(f"{word} {literal(limit)}" for word, limit in limits.items() if limit is not None)


def knob(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Iterable[object] | None = None,
    doc: str = "",
    gentler: Gentler | None = None,
) -> Any:
    """Return a dataclass field for a knob with its default, the values it may take and a line on what it does.

    `gentler` is for knobs that trade bytes for loss: whether "more" or "less" of it is nearer to synchronous SGD.
    """
    allowed = None if choices is None else tuple(choices)
    return field(default=default, metadata={"bounds": Bounds(low, high, above, below, allowed, doc, gentler)})


def _only(kind: type) -> Callable[[object], object]:
    def read(value: object) -> object:
        if not isinstance(value, kind):
            raise ValueError(f"{value!r} is not {kind.__name__}")
        return value

    return read


def _each(read: Callable[[object], object]) -> Callable[[object], object]:
    def read_all(value: object) -> object:
        if not isinstance(value, tuple | list):
            raise ValueError(f"{value!r} is not a list")
        return tuple(map(read, value))

    return read_all


_KINDS: dict[str, tuple[str, Callable[[object], object]]] = {
    "bool": ("true or false", _only(bool)),
    "int": ("a whole number", whole),
    "float": ("a number", real),
    "str": ("a name", _only(str)),
    "None": ("none", _only(type(None))),
}
_KINDS |= {f"tuple[{kind}, ...]": (f"a list, each {phrase}", _each(read)) for kind, (phrase, read) in _KINDS.items()}


@dataclass(frozen=True)
class Knob:
    """One hyper-parameter of a word class; `default` is MISSING where a sentence must give it."""

    name: str
    kinds: tuple[str, ...]
    default: object
    bounds: Bounds

    def fit(self, value: object) -> object:
        """Return `value` converted to the knob's own type, or MISSING where it is not allowed."""
        for kind in self.kinds:
            try:
                candidate = _KINDS[kind][1](value)
            except (ValueError, OverflowError):
                continue
            if self.bounds.admit(candidate):
                return candidate
        return MISSING

    def write(self, value: object) -> str:
        """Return the text of `value` in a sentence, with sizes in bytes as in 25MiB."""
        return literal(value, in_bytes=self.name.endswith("_bytes"))

    @property
    def fit_example(self) -> object:
        """A value that this knob accepts: its default where it has one."""
        limits = self.bounds
        candidates = (
            self.default,
            *(limits.choices or ()),
            limits.low,
            limits.high,
            1,
            0.5,
            True,
            "name",
            (1,),
            ("name",),
        )
        fitting = (self.fit(candidate) for candidate in candidates if candidate is not None)
        return next((value for value in fitting if value is not MISSING), None)

    @property
    def example(self) -> str:
        """An argument that this knob accepts, for error messages that show what to write."""
        return f"{self.name}={self.write(self.fit_example)}"

    def __str__(self) -> str:
        """What the knob may be, in words: "a number, above 0 and at most 1"."""
        limits = str(self.bounds)
        if self.bounds.choices is not None:
            return limits
        kinds = " or ".join(_KINDS[kind][0] for kind in self.kinds)
        return f"{kinds}, {limits}" if limits else kinds


def knobs(word: type) -> tuple[Knob, ...]:
    """Return the hyper-parameters of a word class in the order in which a sentence gives them."""
    return _knobs(word)


@cache
def _knobs(word: Any) -> tuple[Knob, ...]:
    found = []
    for spec in fields(word):
        annotation = spec.type if isinstance(spec.type, str) else inspect.formatannotation(spec.type)
        kinds = tuple(kind.strip() for kind in annotation.split("|"))
        if spec.init and set(kinds) <= _KINDS.keys() and spec.default_factory is MISSING:
            found.append(Knob(spec.name, kinds, spec.default, spec.metadata.get("bounds", Bounds())))
    return tuple(found)


def unwritable(word: type) -> list[str]:
    """Return the fields that no sentence could give: their type is no literal, or their default no plain value."""
    known = {knob.name for knob in knobs(word)}
    return [spec.name for spec in fields(word) if spec.init and spec.name not in known]


class Technique:
    """Base of every word class: construction checks each knob, so that no object with a wrong value exists.

    `needs` maps an axis to the only names that may stand there in the same sentence, `refuses` to those that may not;
    an empty tuple means any name. `prefers` names the word an axis gets when the sentence leaves it open. A sync rule's
    way to communicate, `talks`, must be among those its architecture `offers`, and the kinds of meeting a compressor
    `asks` for among those the architecture `carries`; beyond that a sync rule may say what it `objects_to` in the
    whole compression. A word that `wraps` acts only on the words before it in a chain.
    """

    axis: ClassVar[str]
    name: ClassVar[str] = ""
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    refuses: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    prefers: ClassVar[Mapping[str, str]] = {}
    talks: ClassVar[str] = "average"
    offers: ClassVar[tuple[str, ...]] = ("average",)
    wraps: ClassVar[bool] = False
    carries: ClassVar[tuple[type, ...] | None] = None  # None: every kind

    @property
    def asks(self) -> tuple[type, ...]:
        return ()

    def objects_to(self, compressor: Any) -> str | None:
        """Return why this rule cannot work with the compressor of its sentence; None where it can."""
        return None

    def __post_init__(self) -> None:
        for spec in knobs(type(self)):
            value = getattr(self, spec.name)
            fit = spec.fit(value)
            if fit is MISSING:
                name = self.name or type(self).__name__
                raise StrategyError(
                    f"{name} cannot take {spec.name}={shown(value)}: {spec.name} is {spec}; "
                    f"write {name}({spec.example})"
                )
            object.__setattr__(self, spec.name, fit)
