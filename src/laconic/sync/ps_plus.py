"""PS+: asynchronous SGD whose pushes and pulls overlap with computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.asp import ASP, STALENESS
from laconic.sync.base import State
from laconic.sync.contexts import ServerContext
from laconic.sync.tensor_lists import copy_into
from laconic.worker import Communication, whole


@technique("ps_plus", aliases=["psplus"], paper="Jin et al., IEEE TPDS 33(12), 2022")
@dataclass(frozen=True)
class PSPlus(ASP):
    """Pull the next model and push the last gradient while the worker computes.

    So each gradient misses its worker's last update, and what other workers did meanwhile; the server steps with
    1/(1+tau) of the learning rate, where the staleness tau is about N - 1. Readings chosen: that formula, and the
    moment of the pull. `after_push` pulls when the worker begins to compute and sees the push that is sent then: a
    single worker is exactly one update behind, and a step takes max(compute, push, pull) as long as the three together
    take no more than twice that, for example where push and pull together are no longer than computing; else it takes
    half of their sum, the least at which a worker is one update behind. `at_once` does not wait for that push: a step
    always takes max(compute, push, pull), and a single worker is two updates behind.
    """

    staleness: str = knob(
        "inverse",
        choices=STALENESS,
        doc="how staleness reduces a gradient's rate",
    )
    share: float | None = knob(1.0, above=0, doc="share of the rate for one push; none: 1/N")
    pull: str = knob(
        "after_push", choices=("after_push", "at_once"), doc="whether a pull sees the push that is sent with it"
    )

    @property
    def cadence(self) -> None:
        """Pushes and pulls overlap with computing, which no cadence says."""
        return None

    def init(self, context: ServerContext) -> State:
        super().init(context)
        return {"versions": torch.tensor(context.server.versions)}

    def stepping(self, context: ServerContext, state: State) -> Communication[State]:
        computed_at = state["versions"].tolist()
        pushing = self._push(context, context.gradients, computed_at)
        staleness = yield from self._result(context, "push")
        if staleness is not None:
            context.note(staleness=staleness)
        if self.pull == "after_push":
            context.start("push", pushing)
        received = yield from self._result(context, "pull")
        context.start("pull", self._pull(context))
        if self.pull == "at_once":
            context.start("push", pushing)
        if received is None:  # the first step: nothing was pulled yet
            return state
        tensors, versions = received
        copy_into(context.parameters, tensors)
        return {"versions": torch.tensor(versions)}

    def _push(self, context: ServerContext, gradients: list[Tensor], versions: list[int]) -> Communication[Any]:
        """Push the gradients, and return their staleness."""
        (pushed,) = yield [
            context.server.push(gradients, context.step, versions=versions, settings=self.settings(context))
        ]
        return max(whole(fields, "staleness") for fields in pushed.fields)

    def _pull(self, context: ServerContext) -> Communication[Any]:
        """Pull the model, and return its values and the version of each shard."""
        (pulled,) = yield [context.server.pull()]
        return [pulled.tensors, [whole(fields, "version") for fields in pulled.fields]]

    def _result(self, context: ServerContext, name: str) -> Communication[Any]:
        return (yield from context.wait_for(name)) if context.is_in_flight(name) else None

    def leave(self, context: ServerContext, state: State) -> Communication[None]:
        yield from self._result(context, "push")
        yield from self._result(context, "pull")
        yield from super().leave(context, state)
