"""The constants that a bound needs, and the bound itself, as values.

Fields are named as the papers name them, so that a calculator can be read beside its theorem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from laconic.errors import LaconicError

A_BOUND = "It is a calculator of a convergence result, which says what a method needs and sends nothing itself."
"""Why a bound is no word of a sentence."""

Measure = Literal["f - f*", "|grad f|^2", "iterations"]

_MEANING = {
    "L": "the smoothness (--smoothness)",
    "mu": "strong convexity or the PL constant (--mu)",
    "sigma2": "the variance of a gradient (--sigma, its root)",
    "G2": "a bound on E|g|^2 (--gradient-bound, its root)",
    "F0": "the gap f(x0) - f* (--gap)",
    "R0": "the distance |x0 - x*| (--distance)",
}


@dataclass(frozen=True)
class Problem:
    """The constants of an objective; None means unknown, and a theorem that needs the constant says so.

    A stochastic gradient has E|g - grad f|^2 <= M |grad f|^2 + sigma2, over all coordinates together.
    """

    L: float
    sigma2: float = 0.0
    mu: float | None = None
    G2: float | None = None
    F0: float | None = None
    R0: float | None = None
    M: float = 0.0

    def __post_init__(self) -> None:
        for name in ("L", "mu"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{name}={value} is {_MEANING[name]} and must be above 0")
        for name in ("sigma2", "G2", "F0", "R0", "M"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"{name}={value} cannot be negative; leave it out where it is unknown")
        require(self.mu is None or self.mu <= self.L, f"mu={self.mu} cannot exceed the smoothness L={self.L}")

    def known(self, name: str) -> float:
        """Return a constant that a theorem needs, or refuse where it is unknown."""
        value: float | None = getattr(self, name)
        if value is None:
            raise LaconicError(f"it needs {name}, {_MEANING[name]}; give it")
        return value

    @property
    def kappa(self) -> float:
        return self.L / self.known("mu")


@dataclass(frozen=True)
class Bound:
    """The result of a theorem: its terms by name, and what was chosen or checked for it.

    `unknown` names constants the theorem leaves open; they are 1 here, so that a value with any is an order only.
    """

    measures: Measure
    terms: Mapping[str, float]
    rounds: int | None = None
    period: int | None = None
    rate: float | None = None
    conditions: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        return sum(self.terms.values())


def require(holds: bool, sentence: str) -> None:
    """Refuse with this sentence unless the condition of a theorem holds."""
    if not holds:
        raise LaconicError(sentence)


def counts(**numbers: float) -> None:
    """Refuse numbers (workers, steps, periods, targets) that are not positive, by name."""
    for name, number in numbers.items():
        require(number > 0, f"{name}={number:g} makes no sense here; give a number above 0")


def smallest(holds: Callable[[int], bool], what: str, limit: int = 10**18) -> int:
    """Return the smallest whole number for which a condition holds that, once true, stays true for larger ones."""
    high = 1
    while not holds(high):
        high *= 2
        require(high <= limit, f"no {what} up to {limit:.0e} is enough; ask for less precision")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def largest(holds: Callable[[int], bool], limit: int) -> int:
    """Return the largest whole number up to which a condition holds, and 1 at least, since that is always allowed."""
    low, high = 1, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
