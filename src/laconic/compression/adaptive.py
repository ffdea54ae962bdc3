"""Compression that is decided anew in every step: the controller of adaptive methods."""

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
    """Another compressor in every step. `choose` may ask the others first, so that all choose alike; what it decides by
    is in the state. What it chooses keeps no state of its own."""

    @abstractmethod
    def choose(self, x: Tensor, state: State, meet: Meet) -> Choice:
        """Who speaks in this step, and what is remembered of the choice."""

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        chosen, state = yield from self.choose(x, state, meet)
        outcome = yield from chosen.exchange(x, {}, meet)
        return replace(outcome, state=state)
