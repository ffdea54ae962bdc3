"""The interface of a rival: another library's method, which takes over a model and an optimizer.

Rivals are declared without importing torch or their library, so that a launcher can check a text before it starts
anything; `take_over` imports what it needs.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, Self

from laconic.errors import LaconicError, StrategyError
from laconic.knobs import Technique, knobs
from laconic.literals import shown

if TYPE_CHECKING:
    from torch import nn, optim

    from laconic.real.group import RealGroup


@dataclass(frozen=True)
class RivalContext:
    """Where a rival runs: the process group that `distribute` has set up, and the seed of the run."""

    group: RealGroup
    seed: int


@dataclass(frozen=True)
class Rival(Technique):
    """A method of another library with its knobs; its text is `library:method(knob=value, …)`."""

    axis: ClassVar[str] = "rival"

    @abstractmethod
    def take_over(
        self, model: nn.Module, optimizer: optim.Optimizer, context: RivalContext
    ) -> tuple[nn.Module, optim.Optimizer]:
        """Return the model and the optimizer as the library wants them; the user's loop stays as it is."""

    @classmethod
    def of(cls, positional: Sequence[object], named: Mapping[str, object]) -> Self:
        """Return the rival that a text describes: arguments by position, then by name."""
        known = knobs(cls)
        names = [knob.name for knob in known]
        takes = f"it takes {', '.join(names)}: write {cls.name}({known[0].example})"
        given = dict(zip(names, positional, strict=False))
        if len(positional) > len(names):
            raise StrategyError(f"{cls.name} is given {len(positional)} arguments; {takes}")
        if unknown := [name for name in named if name not in names]:
            raise StrategyError(f"{cls.name} has no argument {shown(unknown[0])}; {takes}")
        if twice := given.keys() & named.keys():
            raise StrategyError(f"{cls.name} is given {min(twice)} twice; {takes}")
        return cls(**given, **named)

    @property
    def period(self) -> int:
        """The number of steps after which what the method sends repeats; knobs of this name take its place."""
        return 1

    @classmethod
    def summary(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "").splitlines()[0]

    @property
    def sentence(self) -> str | None:
        """The strategy of ours with the same mathematics, or None where there is none."""
        return None

    @property
    def library(self) -> str:
        return self.name.partition(":")[0]

    def check(self, *, virtual: bool = False, dry_run: bool = False) -> None:
        """Refuse where the library's own code could not run."""
        if virtual:
            raise StrategyError(
                f"{self.library}'s own code needs real processes: run `{self}` with the real engine, or give virtual "
                "workers a strategy of ours"
            )
        if dry_run:
            raise StrategyError(
                f"a dry run prices our own sentences, and what `{self}` sends is up to {self.library}: run it, and "
                "read the network interface's counter"
            )
        if find_spec(self.library) is None:
            raise LaconicError(
                f"`{self}` is {self.library}'s own code, which is not installed: pip install 'laconic[rivals]'"
            )

    def __str__(self) -> str:
        values = [(knob, getattr(self, knob.name)) for knob in knobs(type(self))]
        changed = [f"{knob.name}={knob.write(value)}" for knob, value in values if value != knob.default]
        return f"{self.name}({', '.join(changed)})" if changed else self.name
