"""The grammar of strategies: from text to values.

    strategy   part (`until` condition `, then` part)*
    part       sentence | `[` strategy `]` | tier (`>` tier)* | `{` rule (`,` rule)* `}`
    tier       `[` strategy `]@` name
    rule       (role | numel>=N | ndim==N | "glob" | `else`) `:` part
    condition  `step` N | metric<number
    sentence   chain (`/` chain)*
    chain      word (`+` word)*
    word       (name | place) [`(` arguments `)`]
    place      file.py`:`Class | package.module`:`Class, without spaces

Only the grammar lives here: whether words exist, fit together and take their arguments is checked by the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from laconic import registry
from laconic.errors import StrategyError
from laconic.language.predicates import (
    COMPARISONS,
    QUANTITIES,
    ROLES,
    Condition,
    Else,
    Glob,
    MetricCondition,
    ParameterSelector,
    Role,
    Shape,
    StepCondition,
)
from laconic.language.tokenizer import Reader
from laconic.language.word import FederatedWord, PolicyWord, ScheduleWord, Word

DEEPEST = 32
"""The number of levels to which strategies may be nested."""


@dataclass(frozen=True)
class Shapes:
    """The constructors of the four shapes of a strategy, which the grammar calls with what it has read."""

    sentence: Callable[..., Any]
    tiers: Callable[[tuple[tuple[Any, str], ...]], Any]
    map: Callable[[tuple[tuple[ParameterSelector, Any], ...]], Any]
    phases: Callable[[tuple[tuple[Any, Condition], ...], Any], Any]


def _no_shape(*_: Any) -> Any:
    raise StrategyError("a federated sentence has words, and no tiers, maps or phases")


_NO_SHAPES = Shapes(_no_shape, _no_shape, _no_shape, _no_shape)


def parse(text: str, shapes: Shapes, expanding: tuple[str, ...] = ()) -> Any:
    """Return the strategy that `text` describes. `expanding` lists the named sentences whose text this is part of."""
    parser = _Parser(text, shapes, expanding)
    try:
        return parser.all()
    except StrategyError as error:
        raise StrategyError(f"{error} ({parser.where()})") from error.__cause__


def parse_policy(text: str) -> Any:
    """Return the policy of a cluster that `text` describes: a word with arguments, such as `fifo(backfill=true)`."""
    return _parse_alone(text, PolicyWord, "one policy, such as fifo(backfill=true)")


def parse_schedule(text: str) -> Any:
    """Return the schedule of a pipeline that `text` describes, such as `interleaved_1f1b(chunks=2)`."""
    return _parse_alone(text, ScheduleWord, "one schedule, such as interleaved_1f1b(chunks=2)")


def _parse_alone(text: str, kind: type[Word], such_as: str) -> Any:
    """Return the technique of a word with arguments that stands alone."""
    reader = Reader(text)
    try:
        name = reader.advance().text
        positional, named = reader.arguments(name)
        if reader.token.kind != "end":
            reader.refuse(f"{reader.token} cannot stand here; write {such_as}")
        return kind.of(name, *positional, **named).make()
    except StrategyError as error:
        raise StrategyError(f"{error} ({reader.where()})") from error.__cause__


def parse_federated(text: str) -> list[tuple[Word, ...]]:
    """Return the chains of a federated sentence, such as `fedavg(clients=10) / topk(0.01)+ef / server`."""
    parser = _Parser(text, _NO_SHAPES, ())
    chains: list[tuple[Word, ...]] = []
    try:
        while not chains or parser.take("/"):
            kind = FederatedWord if parser.entry().axis == "federated" else Word
            chain = [parser.word(kind)]
            while kind is Word and parser.take("+"):
                chain.append(parser.word())
            chains.append(tuple(chain))
        if parser.token.kind != "end":
            parser.refuse(f'{parser.token} cannot stand here; write "/" between words')
        return chains
    except StrategyError as error:
        raise StrategyError(f"{error} ({parser.where()})") from error.__cause__


class _Parser(Reader):
    """A recursive-descent parser with a method for each line of the grammar."""

    def __init__(self, text: str, shapes: Shapes, expanding: tuple[str, ...]) -> None:
        super().__init__(text)
        self.shapes = shapes
        self.expanding = expanding
        self.depth = 0

    def all(self) -> Any:
        """Parse the whole text."""
        strategy = self.strategy()
        if self.at("/", "+"):
            self.refuse("words do not follow a bracket; write them inside it, as in [bsp / bf16]@node")
        if self.at("@", ">"):
            self.refuse("a tier stands in brackets and has a name; write [bsp]@node > [bf16+ef]@site")
        if self.token.kind != "end":
            self.refuse(f'{self.token} cannot stand here; write "/" between words, ", then" between phases')
        return strategy

    def strategy(self) -> Any:
        start = self.token
        parts = []
        strategy = self.part()
        while self.take("until"):
            parts.append((strategy, self.condition()))
            self.expect(",", "after a condition write , then and the next strategy")
            self.expect("then", "after a condition write , then and the next strategy")
            strategy = self.part()
        self.mark = start
        return self.shapes.phases(tuple(parts), strategy) if parts else strategy

    def part(self) -> Any:
        start = self.token
        if self.at("{"):
            return self.map()
        if not self.at("["):
            return self.sentence()
        strategy, name = self.level()
        if name is None and not self.at(">"):
            return strategy
        levels = [(strategy, name)]
        while self.take(">"):
            levels.append(self.level())
        self.mark = start
        named = tuple((strategy, name) for strategy, name in levels if name is not None)
        if len(named) < len(levels):
            raise StrategyError("every tier has a name; write [bsp]@node > [bf16+ef]@site")
        return self.shapes.tiers(named)

    def level(self) -> tuple[Any, str | None]:
        self.deepen()
        self.expect("[", "a tier stands in brackets: write [bsp]@node > [bf16+ef]@site")
        strategy = self.strategy()
        self.expect("]", 'close the bracket, or write "/" between words')
        self.depth -= 1
        return strategy, self.name("the tier's name", "write [bsp]@node") if self.take("@") else None

    def map(self) -> Any:
        start = self.token
        self.deepen()
        self.expect("{", "a map is {matrix: bf16, else: none}")
        rules = [self.rule()]
        while self.take(","):
            rules.append(self.rule())
        if self.at("until"):
            self.refuse(
                "phases inside a map stand in brackets; write {matrix: [bsp until step 500, then bf16], else: none}"
            )
        self.expect("}", "close the map, or write a comma before its next rule")
        self.depth -= 1
        self.mark = start
        return self.shapes.map(tuple(rules))

    def deepen(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            self.refuse(f"strategies are nested more than {DEEPEST} deep; write fewer brackets")

    # ------------------------------------------------------------------------------------------ predicates

    def rule(self) -> tuple[ParameterSelector, Any]:
        selector = self.selector()
        self.expect(":", "a rule is a selector, a colon and a strategy, as in matrix: bf16")
        return selector, self.part()

    def selector(self) -> ParameterSelector:
        self.mark = self.token
        if self.token.kind == "string":
            return Glob(self.string())
        if self.take("else"):
            return Else()
        if self.at(*ROLES):
            return Role(self.advance().text.lower())
        if self.at(*QUANTITIES):
            quantity = self.advance().text.lower()
            comparison, value = self.comparison()
            return Shape(quantity, comparison, value)  # type: ignore[arg-type]
        self.refuse(
            f"{self.token} selects no parameter; write {', '.join(ROLES)}, numel>=4096, ndim==2, else, "
            'or a name in quotes such as "*.attention.*"'
        )

    def condition(self) -> Condition:
        start = self.token
        metric = self.name("a condition", "write until step 500 or until loss<1.6")
        if metric.lower() == "step" and self.token.kind == "number":
            step = self.number()
            self.mark = start
            return StepCondition(step)  # type: ignore[arg-type]
        comparison, value = self.comparison()
        self.mark = start
        return MetricCondition(metric, comparison, value)

    def comparison(self) -> tuple[str, int | float]:
        if not self.at(*COMPARISONS):
            self.refuse(
                f"expected one of {' '.join(COMPARISONS)} and found {self.token}; write numel>=4096 or loss<1.6"
            )
        return self.advance().text, self.number()

    # ------------------------------------------------------------------------------------------ sentences

    def sentence(self) -> Any:
        start = self.token
        named: list[registry.Entry] = []
        chains: list[tuple[Word, ...]] = []
        while not (named or chains) or self.take("/"):
            entry = self.entry()
            if entry.kind == "sentence":
                self.advance()
                named.append(entry)
                if self.at("(", "+"):
                    self.refuse(f'{entry.name} is a whole method and takes no arguments; write "{entry.name} / word"')
                continue
            chain = [self.word()]
            while self.take("+"):
                chain.append(self.word())
            chains.append(tuple(chain))
        self.mark = start
        if not named:
            return self.shapes.sentence(*chains)
        if len(named) > 1:
            raise StrategyError(f"{named[0].name} and {named[1].name} are both whole methods; write one of them")
        return self.expanded(named[0], chains)

    def expanded(self, entry: registry.Entry, chains: list[tuple[Word, ...]]) -> Any:
        """Return the strategy a named sentence stands for, with the words given beside it in place of its own."""
        if entry.name in self.expanding:
            raise StrategyError(f"{entry.name} is defined by itself ({entry.place}); write its sentence out there")
        strategy = parse(str(entry.target), self.shapes, (*self.expanding, entry.name))
        if not chains:
            return strategy
        if not hasattr(strategy, "but"):
            raise StrategyError(
                f"{entry.name} is not one sentence, so no word of it can be replaced; write out {strategy}"
            )
        return strategy.but(*chains)

    def entry(self) -> registry.Entry:
        self.mark = self.token
        if self.token.kind not in ("name", "place"):
            self.refuse(f"expected a word and found {self.token}; write a name such as bsp, bf16 or allreduce")
        return registry.find(self.token.text)

    def word(self, kind: type[Word] = Word) -> Word:
        start = self.token
        name = self.entry().name
        self.advance()
        positional, named = self.arguments(name)
        self.mark = start
        return kind.of(name, *positional, **named)
