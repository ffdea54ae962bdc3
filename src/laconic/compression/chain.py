"""Build one compressor from the words of a chain such as `x+y+ef`."""

from __future__ import annotations

from collections.abc import Sequence

from laconic.compression.base import Compressor
from laconic.compression.codec import Codec
from laconic.compression.flat import Flat, Joint
from laconic.compression.selector import PlaceSelector, Selected
from laconic.compression.wrapper import Wrapping
from laconic.errors import StrategyError
from laconic.registry import composes


@composes(Compressor)
def chain(links: Sequence[Compressor]) -> Compressor:
    """Return the compressor that a chain of words describes.

    `flat` stands first and joins tensors; a selector is followed by the codec of its values; a wrapping word
    (`two_hop`, `ef`, …) wraps everything that stands before it.
    """
    if len(links) > 1 and isinstance(links[0], Flat):
        return Joint(chain(links[1:]))
    *inner, last = links
    names = "+".join(link.name or type(link).__name__ for link in links)
    if isinstance(last, Wrapping):
        if not inner:
            raise StrategyError(f"{names} alone does nothing: write what it should wrap, as in `bf16+ef`")
        wrapped = chain(inner)
        if (why := last.objects(wrapped)) is not None:
            raise StrategyError(f"{names}: {why}")
        return last.around(wrapped)
    if inner and isinstance(links[0], PlaceSelector):
        values = chain(links[1:])
        if isinstance(values, Codec) and not values.ragged:
            return Selected(links[0], values)
    if inner:
        raise StrategyError(f"{names} cannot be chained: {last.name} does not take another one's payload")
    return last
