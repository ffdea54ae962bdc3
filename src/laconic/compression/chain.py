"""From the words of a chain to one compressor: `x+y+ef`."""

from __future__ import annotations

from collections.abc import Sequence

from laconic.compression.base import Compressor
from laconic.compression.error_feedback import ErrorFeedback, Remembering
from laconic.errors import StrategyError


def chain(links: Sequence[Compressor]) -> Compressor:
    """One compressor that does what the links say; error feedback wraps all that stands before it."""
    *inner, last = links
    if isinstance(last, ErrorFeedback):
        if not inner:
            raise StrategyError("error feedback alone keeps nothing: write what it should wrap, as in `bf16+ef`")
        return Remembering(chain(inner))
    if inner:
        names = "+".join(type(link).__name__ for link in links)
        raise StrategyError(f"{names} cannot be chained: no compressor here takes another one's payload yet")
    return last
