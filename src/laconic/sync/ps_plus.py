"""PS+: neither the push nor the pull is waited for while there is something to compute."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.asp import ASP, STALENESS
from laconic.sync.base import Section, State, Talk
from laconic.sync.tensors import copy_into
from laconic.worker import whole


@technique("ps_plus", aliases=["psplus"], paper="Jin et al., IEEE TPDS 33(12), 2022")
@dataclass(frozen=True)
class PSPlus(ASP):
    """The next model is pulled, and the last gradient pushed, while the worker computes.

    So each gradient misses its worker's last update, and what others did meanwhile; the server steps with 1/(1+tau) of
    the rate, which is about 1/N already. Readings chosen: that formula, and the moment of the pull. `after_push` asks
    when the worker begins to compute and sees the push that leaves then: a lone worker is one update behind, and of
    three parts two go on at a time. `at_once` does not wait for that push: two behind, and all three overlap, so that a
    step takes max(compute, push, pull) also where push and pull together are longer than computing.
    """

    staleness: str = knob(
        "inverse",
        choices=STALENESS,
        doc="what a stale gradient's rate becomes",
    )
    share: float | None = knob(1.0, above=0, doc="of the rate for one push; none: 1/N")
    pull: str = knob(
        "after_push", choices=("after_push", "at_once"), doc="whether it sees the push that leaves with it"
    )

    def init(self, section: Section) -> State:
        super().init(section)
        return {"versions": torch.tensor(section.server.versions)}

    def stepping(self, section: Section, state: State) -> Generator[Any, Any, State]:
        computed_at = state["versions"].tolist()
        pushing = self._push(section, section.gradients, computed_at)
        staleness = yield from self._arrived(section, "push")
        if staleness is not None:
            section.note(staleness=staleness)
        if self.pull == "after_push":
            section.start("push", pushing)
        brought = yield from self._arrived(section, "pull")
        section.start("pull", self._pull(section))
        if self.pull == "at_once":
            section.start("push", pushing)
        if brought is None:  # the first step: as far as anybody knows nothing has happened
            return state
        tensors, versions = brought
        copy_into(section.parameters, tensors)
        return {"versions": torch.tensor(versions)}

    def _push(self, section: Section, gradients: list[Tensor], versions: list[int]) -> Talk:
        """Ends with the gradient's staleness."""
        (pushed,) = yield [
            section.server.push(gradients, section.step, versions=versions, settings=self.settings(section))
        ]
        return max(whole(fields, "staleness") for fields in pushed.fields)

    def _pull(self, section: Section) -> Talk:
        """Ends with the values, and the version of each shard."""
        (pulled,) = yield [section.server.pull()]
        return [pulled.tensors, [whole(fields, "version") for fields in pulled.fields]]

    def _arrived(self, section: Section, name: str) -> Talk:
        return (yield from section.arrive(name)) if section.under_way(name) else None

    def leave(self, section: Section, state: State) -> Generator[Any, Any, None]:
        yield from self._arrived(section, "push")
        yield from self._arrived(section, "pull")
        yield from super().leave(section, state)
