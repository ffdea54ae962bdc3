"""`Timing`: the measurements from which a schedule makes its plan: the times of layers, and the price of a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.errors import LaconicError
from laconic.values.comm_plan import CommPlan, Message
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price
from laconic.values.tensor_spec import TensorSpec


@dataclass(frozen=True)
class Timing:
    """The forward and backward seconds of each tensor (in the plan's numbering), and the price of a message.

    `compressed` is the price of a tensor's bytes through the sentence's compressor, including its encoding and
    decoding.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    price: Price
    duplex: bool = False  # one message's push and another's pull run at the same time, each for half the price
    halved: Price | None = None  # the price of a reduce-scatter and an all-gather in place of an all-reduce
    compressed: Price | None = None

    def __post_init__(self) -> None:
        if len(self.forward) != len(self.backward) or min((*self.forward, *self.backward), default=0) < 0:
            raise LaconicError("timing has a forward and a backward time for each tensor, none of them negative")

    def seconds(self, plan: CommPlan, message: Message) -> float:
        """Return the time of a message: its dense part is priced as one, and each compressed tensor by itself."""
        price = self.price if self.halved is None or not plan.halves else self.halved
        if self.compressed is None:
            return price.seconds(plan.nbytes(message))
        size = plan.tensors[plan.buckets[message.bucket][0]].dtype.itemsize
        parts = [(i, (stop - start) * size) for i, start, stop in plan.carried(message)]
        dense = sum(nbytes for i, nbytes in parts if i in plan.plain)
        coded = (self.compressed.seconds(nbytes) for i, nbytes in parts if i not in plan.plain)
        return price.seconds(dense) + sum(coded)

    def layers(self, tensors: Sequence[TensorSpec], arrival: Sequence[int]) -> LayerTimes:
        """Return the times of the layers in the order of the forward pass."""
        order = tuple(reversed(arrival))
        return LayerTimes(
            tuple(self.forward[i] for i in order),
            tuple(self.backward[i] for i in order),
            tuple(float(tensors[i].nbytes) for i in order),
        )
