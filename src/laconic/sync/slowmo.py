"""SlowMo: a slow momentum around local steps."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.base import Section, State
from laconic.sync.outer import Outer


@technique("slowmo", aliases=["slow_momentum", "bmuf"], paper="Wang, Tantia, Ballas, Rabbat, ICLR 2020")
@dataclass(frozen=True)
class SlowMo(Outer):
    """u = beta·u + (x − mean)/rate and x = x − alpha·rate·u after every `period` local steps.

    Dividing by the learning rate keeps u free of its decay. `alpha=1, beta=0` is local SGD, one worker is Lookahead.
    The base optimizer's own memory is reset at the end of a round (the paper's choice for SGD with momentum), kept (for
    Adam) or averaged. The base here is local steps; the paper also puts gossip there.
    """

    period: int = knob(12, low=1, doc="local steps in a round")
    alpha: float = knob(1.0, above=0, doc="slow rate")
    beta: float = knob(0.6, low=0, below=1, doc="slow momentum")
    buffers: str = knob("keep", choices=("reset", "keep", "average"), doc="what becomes of the optimizer's own memory")

    def step(self, section: Section, point: Tensor, momentum: Tensor, gradient: Tensor) -> None:
        if not section.rate:  # a schedule's zero: nothing to divide by, and the base's own mean is the step
            point.sub_(gradient)
            return
        momentum.mul_(self.beta).add_(gradient, alpha=1 / section.rate)
        point.sub_(momentum, alpha=self.alpha * section.rate)

    def after_step(self, section: Section, state: State) -> Generator[Any, Any, State]:
        state = yield from super().after_step(section, state)
        if self.ends_round(section) and self.buffers == "reset":
            for parameter in section.parameters:
                section.optimizer.state.pop(parameter, None)
        elif self.ends_round(section) and self.buffers == "average":
            yield from _average_buffers(section)
        return state


def _average_buffers(section: Section) -> Generator[Any, Any, None]:
    """Of what the optimizer remembers, all that has a parameter's shape; a worker that has none yet counts as zero."""
    memories = [section.optimizer.state.get(p, {}) for p in section.parameters]
    shapes = [p.shape for p in section.parameters]
    alike = [
        {k: v for k, v in m.items() if getattr(v, "shape", None) == s} for m, s in zip(memories, shapes, strict=True)
    ]
    for name in sorted({name for memory in alike for name in memory}):
        mine = [
            m[name].clone() if name in m else torch.zeros_like(p)
            for m, p in zip(alike, section.parameters, strict=True)
        ]
        means = yield from section.average(mine, exact=True)
        for memory, mean in zip(alike, means, strict=True):
            if name in memory:
                memory[name].copy_(mean)
