"""The first hop alone: every worker sends each owner its part, and owners average what they receive.

This is a reduce-scatter of encoded gradients, as sharded training asks for it: the owner of a shard steps on the mean,
and nobody needs an answer. Each value is rounded once, however many workers there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.chain import chain
from laconic.compression.codec import Codec
from laconic.compression.error_feedback import ErrorFeedback
from laconic.compression.flat import Flat
from laconic.compression.loco import LoCo
from laconic.compression.none import Identity
from laconic.compression.owner_rows import ToOwners
from laconic.compression.two_hop import TwoHop
from laconic.compression.wrapper import Wrapping
from laconic.errors import StrategyError
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets, ReduceScatter


@dataclass(frozen=True)
class DenseToOwners(Compressor):
    """Add up the rows of all workers as they are, and divide: a plain reduce-scatter, in the same interface."""

    @property
    def meets(self) -> Meets:
        return "reduce"

    @property
    def asks(self) -> tuple[type, ...]:
        return (ReduceScatter,)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        total = yield ReduceScatter(x.reshape(-1))
        wide = total.float() if total.dtype.itemsize < 4 else total  # who wants the sum multiplies: it must be exact
        return Outcome(wide.view(x.shape[1:]).div_(meet.size), state)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return spec.numel * spec.dtype.itemsize


def to_owners(links: Sequence[Compressor]) -> Compressor:
    """Return what a chain of words becomes where the owners of shards take the place of an average for all.

    A codec's messages go to owners, and an error memory stays around that. `two_hop` is dropped, since its first hop is
    all that is left of it, and so is `flat`, since shards are flat. Messages must have a known length.
    """
    names = "+".join(link.name or type(link).__name__ for link in links)
    kept = [link for link in links if not isinstance(link, TwoHop | Flat)]
    whole = chain([link for link in kept if not isinstance(link, Wrapping)])
    if isinstance(whole, Identity):
        return DenseToOwners()
    if why := _refused(whole):
        raise StrategyError(f"{names} cannot send gradients to the owners of shards: {why}; write strided_bits(4, 128)")
    for word in (link for link in kept if isinstance(link, Wrapping)):
        if isinstance(whole, Codec) and isinstance(changed := word.around(whole), Codec):
            whole = changed
            continue
        if not isinstance(word, ErrorFeedback | LoCo):
            raise StrategyError(
                f"{names}: {word.name} keeps what all workers received alike, and the owners of shards receive a part "
                "each; write strided_bits(4, 128)+loco"
            )
        whole = word.around(ToOwners(whole, own=True) if isinstance(whole, Codec) else whole)
    return ToOwners(whole) if isinstance(whole, Codec) else whole


def _refused(codec: Compressor) -> str | None:
    """Return why messages of a compressor cannot be sent to owners, or None if they can."""
    if not isinstance(codec, Codec):
        return "what its workers send is no message of one worker that an owner could decode alone"
    return "the length of its messages depends on the values" if codec.ragged else None
