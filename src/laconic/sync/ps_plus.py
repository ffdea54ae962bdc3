"""PS+: neither the push nor the pull is waited for while there is something to compute."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.asp import ASP, STALENESS
from laconic.sync.base import State, SyncContext, Talk
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

    def init(self, context: SyncContext) -> State:
        super().init(context)
        return {"versions": torch.tensor(context.server.versions)}

    def stepping(self, context: SyncContext, state: State) -> Generator[Any, Any, State]:
        computed_at = state["versions"].tolist()
        pushing = self._push(context, context.gradients, computed_at)
        staleness = yield from self._arrived(context, "push")
        if staleness is not None:
            context.note(staleness=staleness)
        if self.pull == "after_push":
            context.start("push", pushing)
        brought = yield from self._arrived(context, "pull")
        context.start("pull", self._pull(context))
        if self.pull == "at_once":
            context.start("push", pushing)
        if brought is None:  # the first step: as far as anybody knows nothing has happened
            return state
        tensors, versions = brought
        copy_into(context.parameters, tensors)
        return {"versions": torch.tensor(versions)}

    def _push(self, context: SyncContext, gradients: list[Tensor], versions: list[int]) -> Talk:
        """Ends with the gradient's staleness."""
        (pushed,) = yield [
            context.server.push(gradients, context.step, versions=versions, settings=self.settings(context))
        ]
        return max(whole(fields, "staleness") for fields in pushed.fields)

    def _pull(self, context: SyncContext) -> Talk:
        """Ends with the values, and the version of each shard."""
        (pulled,) = yield [context.server.pull()]
        return [pulled.tensors, [whole(fields, "version") for fields in pulled.fields]]

    def _arrived(self, context: SyncContext, name: str) -> Talk:
        return (yield from context.arrive(name)) if context.is_in_flight(name) else None

    def leave(self, context: SyncContext, state: State) -> Generator[Any, Any, None]:
        yield from self._arrived(context, "push")
        yield from self._arrived(context, "pull")
        yield from super().leave(context, state)
