"""The scope of compression: each tensor by itself, or all tensors of a message as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from laconic.compression.base import Compressor, Exchange, State
from laconic.compression.wrapper import Wrapper
from laconic.errors import StrategyError
from laconic.registry import technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "flat",
    paper="a scope of the whole model: Shi et al. (gTop-k), 2019; Tang et al. (1-bit Adam), 2021",
    formula="C(x_1, …, x_L joined) in place of C(x_1), …, C(x_L)",
)
@dataclass(frozen=True)
class Flat(Compressor):
    """Compress all tensors of a message as one: the word `flat`, first in a chain, as in flat+topk+ef.

    With the schedule `sequential` a message is the whole model. What is selected, and what shares a scale, changes with
    it: layers of small gradients may send nothing for a long time.
    """

    wraps: ClassVar[bool] = True
    joins: ClassVar[bool] = True
    transparent: ClassVar[bool] = True

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        raise StrategyError(
            "flat is the scope of compression, not a compressor: write it first in a chain, as in `flat+topk+ef`"
        )

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 0


@dataclass(frozen=True)
class Joint(Wrapper):
    """The compressor that a chain with `flat` becomes; whoever holds the tensors joins them before they are
    compressed."""

    @property
    def joins(self) -> bool:
        return True

    @property
    def takes_factors(self) -> bool:
        return False  # a vector of several layers is no layer's gradient
