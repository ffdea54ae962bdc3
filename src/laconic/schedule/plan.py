"""`CommPlan`: an iteration's messages as a value, which cannot be wrong.

A schedule decides which tensors share a message, in what order messages leave and what they wait for; an engine carries
it out. The constructor proves that every element of every tensor travels exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from laconic.compression.base import TensorSpec
from laconic.errors import LaconicError


@dataclass(frozen=True)
class Message:
    """Tensors (by index) that travel together, and the moment they may leave."""

    tensors: tuple[int, ...]
    leaves: Literal["when_ready", "after_backward"] = "when_ready"


@dataclass(frozen=True)
class CommPlan:
    """Messages in the order in which every worker launches them."""

    tensors: tuple[TensorSpec, ...]
    messages: tuple[Message, ...]

    def __post_init__(self) -> None:
        carried = sorted(i for message in self.messages for i in message.tensors)
        if carried != list(range(len(self.tensors))):
            raise LaconicError(
                f"a plan must carry each of its {len(self.tensors)} tensors exactly once, this one carries {carried}"
            )
        for message in self.messages:
            dtypes = {self.tensors[i].dtype for i in message.tensors}
            if len(dtypes) != 1:
                raise LaconicError(f"the tensors of a message share one dtype, not {sorted(map(str, dtypes))}")

    @property
    def message_bytes(self) -> tuple[int, ...]:
        return tuple(sum(self.tensors[i].nbytes for i in message.tensors) for message in self.messages)
