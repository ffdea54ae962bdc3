"""Claims: promises of a technique that a program can check.

The property tests run every registered technique against each claim it declares; a claim that cannot be checked has no
place here. A claim is a small value, so that `laconic show` can print it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Lossless:
    """Every worker ends with the exact mean of the inputs (to the rounding of the sum)."""


@dataclass(frozen=True)
class Payload:
    """Exactly these bytes are handed to the transport by one worker; counted there, not computed."""

    formula: Callable[[Any, Any], int]


@dataclass(frozen=True)
class ReplicasEqual:
    """All workers hold bit-identical parameters after every step."""


@dataclass(frozen=True)
class EveryRankEndsWithTheSum:
    """A reduce request leaves the same sum on every rank, whatever the sizes."""


@dataclass(frozen=True)
class WireFactor:
    """Bytes one worker sends for a reduced byte, as a function of the number of workers."""

    formula: Callable[[int], float]


@dataclass(frozen=True)
class CoversOnce:
    """A plan carries every element of every tensor exactly once, whatever the tensors."""


@dataclass(frozen=True)
class Unbiased:
    """The mean of what is decoded, over many draws, is what was encoded; its variance is what the word declares."""


@dataclass(frozen=True)
class Contraction:
    """What is decoded differs from what was encoded by at most what the word declares, for every input."""
