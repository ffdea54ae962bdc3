"""The base class of adaptive compressors, which choose how to compress anew in every step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from torch import Tensor

from laconic.compression.base import Compressor, Exchange, State
from laconic.worker import Meet, Request

Choice = Generator[Request, Any, tuple[Compressor, State]]


class Adaptive(Compressor):
    """A compressor that delegates to another compressor chosen anew in every step.

    `choose` may exchange messages with the other workers first, so that all of them choose alike; what its decision
    depends on is kept in the state. The compressor that it chooses must keep no state of its own.
    """

    @abstractmethod
    def choose(self, x: Tensor, state: State, meet: Meet) -> Choice:
        """Return the compressor to use in this step, and the state to keep for the next choice."""

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        chosen, state = yield from self.choose(x, state, meet)
        outcome = yield from chosen.exchange(x, {}, meet)
        return replace(outcome, state=state)
