"""A compressor around another one, which it is like in all it does not change; and the words that make one."""

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
    """A word that does something only to the chain before it."""

    wraps: ClassVar[bool] = True

    def objects(self, inner: Compressor) -> str | None:
        """Why it cannot wrap this, if it cannot."""
        return None

    @abstractmethod
    def around(self, inner: Compressor) -> Compressor:
        """What the chain becomes."""

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        raise StrategyError(f"{self.name} wraps what stands before it in a chain; write bf16+ef, for example")

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 0


@dataclass(frozen=True)
class Wrapper(Compressor):
    """Everything is the inner one's, until a subclass says otherwise."""

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
class Keeping(Wrapper):
    """A wrapper with a memory of its own beside the inner one's, which is written with `inner.` before its names."""

    @property
    def kept(self) -> tuple[str, ...]:
        """What of its own is conserved."""
        return ()

    @abstractmethod
    def begin(self, spec: TensorSpec) -> State:
        """Its own memory at the start."""

    @property
    def conserved(self) -> tuple[str, ...]:
        return *self.kept, *within(dict.fromkeys(self.inner.conserved))

    def init(self, spec: TensorSpec) -> State:
        return {**self.begin(spec), **within(self.inner.init(spec))}


def within(state: dict[str, Any]) -> dict[str, Any]:
    """The inner one's memory as it is kept."""
    return {f"inner.{key}": value for key, value in state.items()}


def inner_of(state: State) -> State:
    """And back."""
    return {key.removeprefix("inner."): value for key, value in state.items() if key.startswith("inner.")}
