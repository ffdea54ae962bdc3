"""Rates and times as people write them, such as "1Gbit" or "50us"."""

from __future__ import annotations

import math
import re
from contextlib import suppress

from laconic.errors import LaconicError
from laconic.literals import read_number

_RATES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def bits_per_second(text: str | float) -> float:
    """Return a rate in bits per second from "100Mbit" or "1Gb/s"; a number that is no text is one already."""
    if isinstance(text, str):
        found = re.fullmatch(r"\s*([0-9]+\.?[0-9]*)\s*([kmgt]?)(bit|bits|b)(/s|ps)?\s*", text, re.IGNORECASE)
        if found is None:
            raise LaconicError(_no_rate(text))
        rate = float(found[1]) * _RATES[found[2].lower()]
    else:
        rate = float(text)
    if not 0 < rate < math.inf:
        raise LaconicError(f'a link of "{text}" moves nothing: write a positive rate, such as "100Mbit"')
    return rate


def _no_rate(text: str) -> str:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            bare = text.strip()
            return (
                f'the rate "{bare}" has no unit: write "{bare}Mbit", or "{bare}Gbit", or "{bare}bit" if you mean that'
            )
    return f'"{text}" is no rate: write one such as "100Mbit" or "1Gbit"'


def write_rate(rate: float | None) -> str:
    """Return the rate as text with the usual unit for its size; None is a link without a limit."""
    if rate is None:
        return "unlimited"
    unit, size = max(((unit, size) for unit, size in _RATES.items() if size <= rate), key=lambda entry: entry[1])
    return f"{rate / size:g}{unit.upper() if unit != 'k' else unit}bit"


def seconds(text: str | float) -> float:
    """Return a time in seconds from "50us", "25ms", "1s" or a number of seconds."""
    try:
        found = float(text if isinstance(text, int | float) else read_number(text.strip()))
    except ValueError:
        raise LaconicError(f'"{text}" is no time: write "50us", "25ms", "1s" or a number of seconds') from None
    if not 0 <= found < math.inf:
        raise LaconicError(f"a time of {text} makes no sense: write one that is finite and not below 0, such as 50us")
    return found


def write_seconds(duration: float) -> str:
    """Return a time as text with the usual unit for its size."""
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if duration >= s), ("µs", 1e-6))
    return f"{duration / size:.6g} {unit}"
