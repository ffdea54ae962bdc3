"""Rates and times as people write them, such as "1Gbit" or "50us"."""

from __future__ import annotations

import re
from contextlib import suppress

from laconic.errors import LaconicError
from laconic.literals import read_number

_RATES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def bits_per_second(text: str | float) -> float:
    """Return a rate in bits per second from "100Mbit", "1Gb/s" or a number of bits per second."""
    with suppress(ValueError):
        return float(text)
    assert isinstance(text, str)
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([kmgt]?)(bit|bits|b)(/s|ps)?\s*", text, re.IGNORECASE)
    if found is None:
        raise LaconicError(f'"{text}" is no rate: write "100Mbit", "1Gbit" or a number of bits per second')
    return float(found[1]) * _RATES[found[2].lower()]


def write_rate(rate: float | None) -> str:
    """Return the rate as text with the usual unit for its size; None is a link without a limit."""
    if rate is None:
        return "unlimited"
    unit, size = max(((unit, size) for unit, size in _RATES.items() if size <= rate), key=lambda entry: entry[1])
    return f"{rate / size:g}{unit.upper() if unit != 'k' else unit}bit"


def seconds(text: str | float) -> float:
    """Return a time in seconds from "50us", "25ms", "1s" or a number of seconds."""
    if isinstance(text, int | float):
        return float(text)
    try:
        return float(read_number(text.strip()))
    except ValueError:
        raise LaconicError(f'"{text}" is no time: write "50us", "25ms", "1s" or a number of seconds') from None
