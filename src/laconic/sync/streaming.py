"""Streaming DiLoCo: the outer step in fragments, whose exchanges overlap with local steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from laconic.errors import StrategyError
from laconic.kernels.offload import flush
from laconic.registry import knob, named_sentence, technique
from laconic.sync.base import State
from laconic.sync.contexts import BucketContext
from laconic.sync.outer_optimizer import OFFLOAD, Outer, OuterBucket, nesterov, outer_step
from laconic.values.cadence import Cadence
from laconic.worker import Communication

_PAPER = "Douillard et al., arXiv 2501.18512, 2025"


@technique("streaming_diloco", paper=_PAPER)
@dataclass(frozen=True)
class StreamingDiLoCo(Outer):
    """DiLoCo in fragments of layers, each exchanged during `overlap` local steps and merged with their result.

    Layers are dealt to F fragments in turn (layer l to fragment l mod F); fragment f is due `period·f/F` steps after
    the first one. Four bits on the wire are `streaming_diloco / e3m0`, with each tensor's largest magnitude as scale
    (the paper describes none): a step sends ⌈n/2⌉ + 4 bytes for each tensor of the fragment that is due. `overlap` and
    `period` are one working point of the paper's several.
    """

    period: int = knob(100, low=1, gentler="less", doc="steps between two exchanges of a fragment")
    fragments: int = knob(4, low=1, doc="parts of whole layers; at most as many as there are layers")
    overlap: int = knob(5, low=0, doc="steps a fragment may be in flight before it is waited for; below the period")
    merge: float = knob(0.5, low=0, high=1, doc="share of a worker's own values; 0 drops its steps during the exchange")
    lr: float = knob(0.7, above=0, doc="learning rate of the outer step")
    momentum: float = knob(0.9, low=0, below=1, doc="Nesterov momentum of the outer step")
    offload: bool = knob(False, doc=OFFLOAD)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap >= self.period:
            raise StrategyError(
                f"streaming_diloco cannot wait {self.overlap} steps for a fragment that is due again after "
                f"{self.period}; write overlap={self.period - 1} or less"
            )

    @property
    def cadence(self) -> Cadence:
        return Cadence(self.period, overlaps=False, parts=self.fragments, flight=self.overlap)

    @property
    def guarantee(self) -> str:
        return outer_step(self.period)

    @property
    def keeps_momentum(self) -> bool:
        return self.momentum > 0

    def fragments_in(self, context: BucketContext) -> Sequence[Sequence[int]]:
        return fragments_of(context.names, self.fragments)

    def step(self, context: BucketContext, point: Tensor, momentum: Tensor | None, gradient: Tensor) -> None:
        nesterov(point, momentum, gradient, self.lr, self.momentum)

    def init(self, context: BucketContext) -> State:
        return super().init(context) | {"fragments": torch.tensor(len(self.fragments_in(context)))}

    @torch.no_grad()
    def after_step(self, context: BucketContext, state: State) -> Communication[State]:
        steps, count = self.steps(context, state), int(state["fragments"])
        for f in range(count):
            since = steps - f * self.period // count
            if since % self.period == 0:
                self._start_fragment(context, state, f, self.fragments_in(context)[f])
            if (since - self.overlap) % self.period == 0:
                yield from self._merge_fragment(context, state, f, self.fragments_in(context)[f])
        return state

    def _start_fragment(self, context: BucketContext, state: State, f: int, fragment: Sequence[int]) -> None:
        """Send a fragment's displacements, as they are now."""
        moved = []
        for members in context.buckets(fragment):
            bucket = OuterBucket(self, context, state, members, moves=False)
            moved.append(bucket.displacement())
            bucket.end(changed=False)
        flush(context.parameters[0].device)
        context.start(_exchange_name(f), self.averages(context, fragment, moved))

    def _merge_fragment(
        self, context: BucketContext, state: State, f: int, fragment: Sequence[int]
    ) -> Communication[Any]:
        """Wait for a fragment's exchange, move its point by the result, and merge the point into the parameters."""
        if not context.is_in_flight(_exchange_name(f)):
            return
        means = yield from context.wait_for(_exchange_name(f))
        for members, mean in zip(context.buckets(fragment), means, strict=True):
            bucket = OuterBucket(self, context, state, members)
            bucket.move(mean)
            bucket.pull(1 - self.merge)
            bucket.end()
        flush(context.parameters[0].device)

    def leave(self, context: BucketContext, state: State) -> Communication[Any]:
        for f, fragment in enumerate(self.fragments_in(context)):
            yield from self._merge_fragment(context, state, f, fragment)
        yield from super().leave(context, state)


def _exchange_name(fragment: int) -> str:
    return f"fragment {fragment}"


@cache
def fragments_of(names: tuple[str, ...], count: int) -> list[list[int]]:
    """Return the parameters of each fragment, of whole layers dealt out in turn.

    A layer is a name's modules up to the first number, or else its module.
    """
    layers: dict[tuple[str, ...], list[int]] = {}
    for i, name in enumerate(names):
        modules = name.split(".")[:-1]
        end = next((k for k, module in enumerate(modules) if module.isdecimal()), len(modules))
        layers.setdefault(tuple(modules[: end + 1]), []).append(i)
    dealt = [list(layers.values())[f::count] for f in range(min(count, len(layers)))]
    return [sorted(i for layer in fragment for i in layer) for fragment in dealt]


named_sentence(
    "streaming_diloco_4bit",
    "streaming_diloco / e3m0",
    axis="sync",
    paper=_PAPER,
    doc="""Streaming DiLoCo as in the paper: fragments of 4-bit floats whose exchanges overlap with local steps.

    Beside four bits a value, rounded up to whole bytes, every tensor's scale takes four bytes.
    """,
)
