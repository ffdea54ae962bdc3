"""Streaming DiLoCo: the outer step in fragments, which take turns and travel while workers go on."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from laconic.errors import StrategyError
from laconic.registry import knob, named_sentence, technique
from laconic.sync.base import Section, State, Talk
from laconic.sync.outer import Outer, nesterov
from laconic.sync.tensors import kept

_PAPER = "Douillard et al., arXiv 2501.18512, 2025"


@technique("streaming_diloco", paper=_PAPER)
@dataclass(frozen=True)
class StreamingDiLoCo(Outer):
    """DiLoCo whose fragments take turns: said now, heard `overlap` steps later, merged with what was done meanwhile.

    Layers are dealt out to fragments in turn (layer l to fragment l mod F); fragment f is due `period·f/F` steps after
    the first one. Four bits on the wire are `streaming_diloco / e3m0`, with each tensor's largest magnitude as scale
    (the paper describes none); `overlap` and `period` are one working point of the paper's several.
    """

    period: int = knob(100, low=1, doc="steps between two turns of a fragment")
    fragments: int = knob(4, low=1, doc="parts of whole layers; at most as many as there are layers")
    overlap: int = knob(5, low=0, doc="steps a fragment may travel before it is waited for; below the period")
    merge: float = knob(0.5, low=0, high=1, doc="share of a worker's own values: 0 drops what it did meanwhile")
    lr: float = knob(0.7, above=0, doc="rate of the outer step")
    momentum: float = knob(0.9, low=0, below=1, doc="of the outer step, Nesterov's")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap >= self.period:
            raise StrategyError(
                f"streaming_diloco cannot wait {self.overlap} steps for a fragment that is due again after "
                f"{self.period}; write overlap={self.period - 1} or less"
            )

    def step(self, section: Section, point: Tensor, momentum: Tensor, gradient: Tensor) -> None:
        nesterov(point, momentum, gradient, self.lr, self.momentum)

    @torch.no_grad()
    def after_step(self, section: Section, state: State) -> Generator[Any, Any, State]:
        fragments = fragments_of(tuple(section.names), self.fragments)
        for f, members in enumerate(fragments):
            since = self.steps(section, state) - f * self.period // len(fragments)
            if since % self.period == 0:
                section.start(_called(f), self.displacement(section, state, members))
            if (since - self.overlap) % self.period == 0:
                yield from self._hear(section, state, f, members)
        return state

    def _hear(self, section: Section, state: State, f: int, members: Sequence[int]) -> Talk:
        """A fragment's point moves by what was said, and this worker's own values go towards it."""
        if section.under_way(_called(f)):
            moved = yield from section.arrive(_called(f))
            self.move(section, state, members, moved)
            for i, point in zip(members, kept(state, "point", members), strict=True):
                section.parameters[i].data.lerp_(point, 1 - self.merge)

    def leave(self, section: Section, state: State) -> Talk:
        for f, members in enumerate(fragments_of(tuple(section.names), self.fragments)):
            yield from self._hear(section, state, f, members)
        yield from super().leave(section, state)


def _called(fragment: int) -> str:
    return f"fragment {fragment}"


@cache
def fragments_of(names: tuple[str, ...], count: int) -> list[list[int]]:
    """Whole layers, dealt out in turn. A layer is what a name says up to its first number, or else its module."""
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
    doc="Streaming DiLoCo as the paper sends it: fragments of 4-bit floats that travel while workers go on.",
)
