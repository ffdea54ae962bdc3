"""The predicates of a strategy: selectors, which choose parameters in a map, and conditions, which end a phase.

They are values that print as the text they were read from, and they are evaluated on plain data: no module is
inspected.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from laconic.errors import StrategyError
from laconic.literals import NAME, quoted, real, shown, whole

ROLES = ("matrix", "vector", "scalar", "conv", "embedding", "norm", "bias")
QUANTITIES = ("numel", "ndim")
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}


@dataclass(frozen=True)
class Role:
    """A selector of parameters by their role in their module, such as matrix or bias, which the engine determines."""

    role: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise StrategyError(f"{shown(self.role)} is no role of a parameter; write one of {', '.join(ROLES)}")

    def matches(self, name: str, shape: tuple[int, ...], role: str) -> bool:
        return role == self.role

    def __str__(self) -> str:
        return self.role


@dataclass(frozen=True)
class Shape:
    """A selector of parameters by their number of elements or of dimensions."""

    quantity: str
    comparison: str
    value: int

    def __post_init__(self) -> None:
        if self.quantity not in QUANTITIES:
            raise StrategyError(f"{shown(self.quantity)} is not part of a shape; write numel>=4096 or ndim==2")
        _check_comparison(self.comparison)
        object.__setattr__(self, "value", _count(self.value, self.quantity, 0))

    def matches(self, name: str, shape: tuple[int, ...], role: str) -> bool:
        measured = math.prod(shape) if self.quantity == "numel" else len(shape)
        return COMPARISONS[self.comparison](measured, self.value)

    def __str__(self) -> str:
        return f"{self.quantity}{self.comparison}{self.value}"


@dataclass(frozen=True)
class Glob:
    """A selector of parameters by their qualified name, with the wildcards of a shell: "*.attention.*"."""

    pattern: str

    def matches(self, name: str, shape: tuple[int, ...], role: str) -> bool:
        return fnmatchcase(name, self.pattern)

    def __str__(self) -> str:
        return quoted(self.pattern)


@dataclass(frozen=True)
class Else:
    """A selector of every parameter."""

    def matches(self, name: str, shape: tuple[int, ...], role: str) -> bool:
        return True

    def __str__(self) -> str:
        return "else"


@dataclass(frozen=True)
class StepCondition:
    """A condition that ends a phase after a number of optimizer steps."""

    step: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", _count(self.step, "until step", 1))

    def __str__(self) -> str:
        return f"step {self.step}"


@dataclass(frozen=True)
class MetricCondition:
    """A condition that ends a phase when a metric given to `laconic.log` passes a value."""

    metric: str
    comparison: str
    value: float

    def __post_init__(self) -> None:
        if self.metric.lower() == "step":
            raise StrategyError("steps are counted, not compared; write until step 500")
        if not re.fullmatch(NAME, self.metric):
            raise StrategyError(f"{shown(self.metric)} is no name of a metric; write until loss<1.6")
        _check_comparison(self.comparison)
        try:
            object.__setattr__(self, "value", real(self.value))
        except (ValueError, OverflowError):
            advice = f"write a number, such as until {self.metric}{self.comparison}1.6"
            raise StrategyError(f"{self.metric} cannot be compared with {shown(self.value)}; {advice}") from None

    def holds(self, value: float) -> bool:
        """Tell whether the condition holds for this value of the metric."""
        return COMPARISONS[self.comparison](value, self.value)

    def __str__(self) -> str:
        return f"{self.metric}{self.comparison}{self.value!r}"


ParameterSelector = Role | Shape | Glob | Else
Condition = StepCondition | MetricCondition


def _check_comparison(comparison: str) -> None:
    if comparison not in COMPARISONS:
        raise StrategyError(f"{shown(comparison)} compares nothing; write one of {' '.join(COMPARISONS)}")


def _count(value: object, what: str, least: int) -> int:
    try:
        number = whole(value)
    except (ValueError, OverflowError):
        number = -1
    if number < least:
        raise StrategyError(
            f"{what} takes a whole number of at least {least}, not {shown(value)}; write 500, for example"
        )
    return number
