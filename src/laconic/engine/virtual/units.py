"""Rates and times as people write them in a network's file: "1Gbit", "50us"."""

from __future__ import annotations

import re

from laconic.errors import LaconicError
from laconic.language.literals import read_number

_RATES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def bits_per_second(text: str | float) -> float:
    """ "100Mbit", "1Gb/s" or a number of bits per second."""
    if isinstance(text, int | float):
        return float(text)
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)(bit|bits|b)(/s|ps)?\s*", text, re.IGNORECASE)
    if found is None:
        raise LaconicError(f'"{text}" is no rate: write "100Mbit", "1Gbit" or a number of bits per second')
    return float(found[1]) * _RATES[found[2].lower()]


def seconds(text: str | float) -> float:
    """ "50us", "25ms", "1s" or a number of seconds."""
    return float(text) if isinstance(text, int | float) else float(read_number(text.strip()))
