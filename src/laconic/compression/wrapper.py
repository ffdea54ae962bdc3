"""Compressors around another compressor, whose behaviour they keep unless they change it; and the words that make
them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from laconic.compression.base import Compressor, Exchange, State
from laconic.errors import StrategyError
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets


class Wrapping(Compressor):
    """A word that modifies the chain before it, and compresses nothing by itself."""

    wraps: ClassVar[bool] = True

    def objects(self, inner: Compressor) -> str | None:
        """Return the reason why this word cannot wrap `inner`, or None if it can."""
        return None

    @abstractmethod
    def around(self, inner: Compressor) -> Compressor:
        """Return the compressor that the chain becomes."""

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        raise StrategyError(f"{self.name} wraps what stands before it in a chain; write bf16+ef, for example")

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 0


class Memory(Wrapping):
    """A wrapping word that remembers what messages have left out, and so changes what theory guarantees of a chain."""

    @abstractmethod
    def guarantee(self, omega: float | None, delta: float | None) -> str | None:
        """Return what is guaranteed around a compressor of variance ω and contraction δ, or None if nothing is.

        Either is None where the compressor promises none.
        """


@dataclass(frozen=True)
class Wrapper(Compressor):
    """A compressor that delegates everything to an inner one, except what a subclass overrides."""

    inner: Compressor

    @property
    def meets(self) -> Meets:
        return self.inner.meets

    @property
    def takes(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.takes

    @property
    def asks(self) -> tuple[type, ...]:
        return self.inner.asks

    @property
    def settling(self) -> int:
        return self.inner.settling

    @property
    def refuses_memory(self) -> str | None:
        return self.inner.refuses_memory

    @property
    def conserved(self) -> tuple[str, ...]:
        return self.inner.conserved

    def accepts(self, spec: TensorSpec) -> bool:
        return self.inner.accepts(spec)

    def init(self, spec: TensorSpec) -> State:
        return self.inner.init(spec)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        return self.inner.exchange(x, state, meet)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return self.inner.payload_bytes(spec, size)

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        return self.inner.prices(spec, size)


@dataclass(frozen=True)
class StatefulWrapper(Wrapper):
    """A wrapper with state of its own beside the inner one's, whose entries are prefixed with `inner.`."""

    @property
    def kept(self) -> tuple[str, ...]:
        """The own state entries that are conserved."""
        return ()

    @abstractmethod
    def begin(self, spec: TensorSpec) -> State:
        """Return the own state before the first step."""

    @property
    def conserved(self) -> tuple[str, ...]:
        return *self.kept, *within(dict.fromkeys(self.inner.conserved))

    def init(self, spec: TensorSpec) -> State:
        return {**self.begin(spec), **within(self.inner.init(spec))}


def within(state: dict[str, Any]) -> dict[str, Any]:
    """Return the inner compressor's state with the prefix under which it is kept."""
    return {f"inner.{key}": value for key, value in state.items()}


def inner_of(state: State) -> State:
    """Return the inner compressor's part of a state, without the prefix."""
    return {key.removeprefix("inner."): value for key, value in state.items() if key.startswith("inner.")}
