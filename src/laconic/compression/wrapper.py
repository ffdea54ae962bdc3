"""A compressor around another one, which it is like in all it does not change."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from laconic.compression.base import Compressor, Exchange, State, TensorSpec
from laconic.worker import Meet, Meets


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
