"""The values that a knob can hold and a sentence can write: numbers with units, names, quotes, lists.

A module below registry and strategy, so that checking a knob, explaining a refusal and printing a sentence agree on one
spelling.
"""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from numbers import Integral, Real

from laconic.errors import StrategyError

NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
NUMBER = r"-inf\b|-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+|%|[A-Za-z]+)?"
CONSTANTS: dict[str, bool | float | None] = {"true": True, "false": False, "none": None, "inf": math.inf}

_SIZES = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_EXPONENTS = {"%": -2, "us": -6, "ms": -3, "s": 0}
_PARTS = re.compile(r"(-?[0-9.]+)(%|[A-Za-z]+)")
_LARGEST = 2**63


def whole(value: object) -> int:
    """Return `value` as a 64-bit integer, whatever number type it has; raise a ValueError where that would lose
    something."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{value!r} is not a number")
    number = int(value) if isinstance(value, Integral) else int(float(value))
    if number != value or not -_LARGEST <= number < _LARGEST:
        raise ValueError("the number is not whole, or does not fit into 64 bits")
    return number


def real(value: object) -> float:
    """Return `value` as a float; NaN is refused because it is not equal to itself, and strategies must be."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{value!r} is not a number")
    number = float(value)
    if math.isnan(number):
        raise ValueError("nan is not a number")
    return number


def read_number(text: str) -> int | float:
    """Return the value of a NUMBER: sizes become integer bytes, durations float seconds, percentages fractions."""
    if split := _PARTS.fullmatch(text):
        return _with_unit(*split.groups())
    if not text.lstrip("-").isdigit():
        return float(text)
    if len(text) > 20 or not -_LARGEST <= int(text) < _LARGEST:
        raise StrategyError(
            f"the whole number {text[:24]} does not fit into 64 bits; write it as a float, such as 1e20"
        )
    return int(text)


def _with_unit(digits: str, unit: str) -> int | float:
    if unit in _EXPONENTS:
        return float(f"{digits}e{_EXPONENTS[unit]}")
    if unit not in _SIZES:
        raise StrategyError(f'the unit "{unit}" is unknown; write one of {", ".join([*_EXPONENTS, *_SIZES])}')
    try:
        size = Fraction(digits) * _SIZES[unit]
        return whole(size.numerator if size.denominator == 1 else size)
    except (ValueError, OverflowError):
        raise StrategyError(
            f"{digits[:24]}{unit} is not a whole number of bytes in 64 bits; write one, such as 25MiB"
        ) from None


def literal(value: object, *, in_bytes: bool = False) -> str:
    """Return `value` as a sentence writes it; reading it back gives the same value."""
    match value:
        case None | True | False:
            return str(value).lower()
        case int() if in_bytes and value > 0 and value % 1024 == 0:
            unit = next(unit for unit in ("GiB", "MiB", "KiB") if value % _SIZES[unit] == 0)
            return f"{value // _SIZES[unit]}{unit}"
        case int():
            return str(value)
        case float() if not math.isnan(value):
            return repr(value)
        case str():
            bare = re.fullmatch(NAME, value) and value.lower() not in CONSTANTS
            return value if bare else quoted(value)
        case tuple():
            return f"[{', '.join(map(literal, value))}]"
    raise StrategyError(
        f"{value!r} has no text in a strategy; use a number, true, false, none, a string or a tuple of these"
    )


def quoted(value: str) -> str:
    """Return `value` in double quotes, with JSON's escapes."""
    return json.dumps(value, ensure_ascii=False)


def shown(value: object) -> str:
    """Return `value` as an error message shows it: as a sentence would write it where it could, and never long."""
    try:
        text = literal(value)
    except ValueError:
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
