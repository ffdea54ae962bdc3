"""Ratio schedules: compressors whose share of sent coordinates changes with the steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from laconic.compression.base import Compressor, Exchange, State
from laconic.compression.optional import spread_of
from laconic.compression.selector import Selected
from laconic.compression.wrapper import Wrapper, Wrapping
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

SHAPES = ("exponential", "linear", "stairs")
_STAIRS = 4


@technique(
    "ramp",
    paper="Lin et al. (DGC), ICLR 2018: sparsity that grows in a warm-up",
    aliases=["ratio_schedule"],
    formula="C of ratio start·(end/start)^(t/T) in step t < T, of its own ratio after",
)
@dataclass(frozen=True)
class Ramp(Wrapping):
    """Move the share of sent coordinates from `start` to the compressor's own over a number of steps.

    The word `ramp` wraps what stands before it, as in topk(0.001)+ramp(400)+ef. The share changes exponentially,
    linearly, or in four stairs whose heights are exponential. It may fall, as in a warm-up, or rise, as where the error
    must vanish at the end. Whatever has a knob `ratio` can be wrapped; the price is that of the end.
    """

    steps: int = knob(400, low=1, doc="steps until the compressor's own share is reached")
    start: float = knob(0.25, above=0, high=1, doc="share in the first step")
    shape: str = knob("exponential", choices=SHAPES, doc="shape of the way between the two shares")

    def share(self, step: int, end: float) -> float:
        """Return the share in this step of a ramp that ends at `end`."""
        way = min(1.0, step / self.steps)
        if self.shape == "linear":
            return self.start + way * (end - self.start)
        if self.shape == "stairs":
            way = int(_STAIRS * way) / _STAIRS
        return float(self.start * (end / self.start) ** way)

    def objects(self, inner: Compressor) -> str | None:
        return None if hasattr(ratio_holder(inner), "ratio") else "there is no share to change; write topk+ramp"

    def around(self, inner: Compressor) -> Compressor:
        return Ramped(inner, self)


@dataclass(frozen=True)
class Ramped(Wrapper):
    """The compressor that a chain with `ramp` becomes. Memories, if any, are outside of it and do not depend on the
    share."""

    how: Ramp = field(default_factory=Ramp)

    @property
    def settling(self) -> int:
        return self.how.steps

    def spread(self, spec: TensorSpec) -> float:
        return spread_of(self.inner, spec)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        share = self.how.share(meet.step, ratio_holder(self.inner).ratio)
        return with_share(self.inner, share).exchange(x, state, meet)


def ratio_holder(inner: Compressor) -> Any:
    """Return the compressor whose `ratio` is the share: in a chain, the selector."""
    return inner.selector if isinstance(inner, Selected) else inner


def with_share(inner: Compressor, share: float) -> Compressor:
    """Return the compressor with another share."""
    if isinstance(inner, Selected):
        return replace(inner, selector=replace(ratio_holder(inner), ratio=share))
    return replace(inner, ratio=share)  # type: ignore[type-var]
