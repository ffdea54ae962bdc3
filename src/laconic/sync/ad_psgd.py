"""Asynchronous decentralised SGD: pairs of neighbours average, and nobody waits for a third."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from laconic.errors import ContractError, StrategyError
from laconic.registry import technique
from laconic.sync.base import State
from laconic.sync.contexts import ActorContext, MixingContext
from laconic.sync.gossip import Gossiping
from laconic.sync.tensor_lists import copies, copy_into, keep, kept
from laconic.worker import ActorMessage, Communication

_MEAN = "mean"


class Model:
    """The actor that holds a passive worker's model: it handles one message at a time, so that averaging is atomic."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.outgoing: list[tuple[str, ActorMessage]] = []
        self._tensors = [x.detach().clone() for x in tensors]

    def write(self, sender: int, message: ActorMessage) -> ActorMessage:
        received = message.tensors
        if message.kind not in ("average", "add", "replace") or [x.shape for x in received] != [
            x.shape for x in self._tensors
        ]:
            raise ContractError(f"worker {sender} sent a {message.kind!r} that this model cannot take in")
        if message.kind == "average":
            self._tensors = [(x + y) / 2 for x, y in zip(self._tensors, received, strict=True)]
        elif message.kind == "add":
            self._tensors = [x + y for x, y in zip(self._tensors, received, strict=True)]
        else:
            self._tensors = [y.clone() for y in received]
        return ActorMessage("model", {}, tuple(self._tensors))

    def read(self, sender: int, message: ActorMessage) -> ActorMessage:
        return ActorMessage("model", {}, tuple(self._tensors))

    def lose(self, sender: int) -> None:
        """Do nothing: a worker that is gone just sends no more messages."""

    def state(self) -> dict[str, Any]:
        return {"tensors": list(self._tensors)}

    def restore(self, state: dict[str, Any]) -> None:
        self._tensors = list(state["tensors"])


def sides(edges: Sequence[tuple[int, int]], size: int) -> list[int]:
    """Return 0 or 1 for every worker such that neighbours differ; the first worker of each component gets 0."""
    links: dict[int, list[int]] = {i: [] for i in range(size)}
    for a, b in edges:
        links[a].append(b)
        links[b].append(a)
    found: dict[int, int] = {}
    for start in range(size):
        found.setdefault(start, 0)
        reached = [start]
        while reached:
            here = reached.pop()
            for there in links[here]:
                if there not in found:
                    found[there] = 1 - found[here]
                    reached.append(there)
                elif found[there] == found[here]:
                    raise StrategyError(
                        f"ad_psgd needs a bipartite graph, in which active workers have passive neighbours only, and "
                        f"worker {here} and its neighbour {there} would be on the same side: write a graph with two "
                        "sides, such as a ring of an even number of workers"
                    )
    return [found[i] for i in range(size)]


class AsyncGossipContext(MixingContext, ActorContext, Protocol):
    """Neighbours, and actors on some of them."""


@technique("ad_psgd", aliases=["adpsgd", "async_gossip"], paper="Lian, Zhang, Zhang, Liu, ICML 2018")
@dataclass(frozen=True)
class ADPSGD(Gossiping[AsyncGossipContext]):
    """Average pairs of neighbours while they compute: an active worker and a random passive one become their mean.

    The graph is bipartite, so that no worker ever waits for one that waits itself. A passive worker's model is held by
    an actor, which answers while the worker computes; the worker sends its steps to that actor, which adds them to the
    model as it is by then. An active worker adds its step to the mean in the same way. Averaging keeps the sum of all
    models; a worker that is twice as fast takes twice the steps.
    """

    races: ClassVar[bool] = True
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"compression": ("none",)}

    def check(self, context: AsyncGossipContext) -> None:
        sides(context.mixing().must_be(self.name, "doubly", "symmetric", "static").edges, context.group.size)

    def init(self, context: AsyncGossipContext) -> State:
        state = super().init(context)
        for member, side in enumerate(self._sides(context)):
            if side:
                context.host(_model(member), member, lambda: Model(context.parameters))
        return state

    def begin(self, context: AsyncGossipContext) -> State:
        return keep("x", copies(context.parameters))

    @staticmethod
    def _sides(context: AsyncGossipContext) -> list[int]:
        return sides(context.mixing().edges, context.group.size)

    def is_active(self, context: AsyncGossipContext) -> bool:
        """Return whether this worker is on the side of the graph that starts averagings."""
        return self._sides(context)[context.group.rank] == 0

    def neighbour(self, context: AsyncGossipContext) -> int | None:
        """Return the neighbour to average with after this step, drawn at random; None where there is none."""
        mine = context.group.rank
        others = sorted(a + b - mine for a, b in context.mixing().edges if mine in (a, b))
        draw = np.random.default_rng((context.seed, mine, context.step))
        return others[int(draw.integers(len(others)))] if others else None

    @torch.no_grad()
    def after_step(self, context: AsyncGossipContext, state: State) -> Communication[State]:
        before = kept(state, "x", range(len(context.parameters)))
        changes = [p.detach() - x for p, x in zip(context.parameters, before, strict=True)]
        if self.is_active(context):
            if context.is_in_flight(_MEAN):
                mean = yield from context.wait_for(_MEAN)
                copy_into(context.parameters, [m + change for m, change in zip(mean, changes, strict=True)])
            if (other := self.neighbour(context)) is not None:
                context.start(_MEAN, _update_model(context, other, "average", copies(context.parameters)))
        else:
            copy_into(context.parameters, (yield from _update_model(context, context.group.rank, "add", changes)))
        return keep("x", copies(context.parameters))

    def leave(self, context: AsyncGossipContext, state: State) -> Communication[None]:
        """Complete the averaging in flight, then replace all models by their mean, those held by actors too."""
        if context.is_in_flight(_MEAN):
            copy_into(context.parameters, (yield from context.wait_for(_MEAN)))
        yield from context.mean([torch.zeros(1)])
        if not self.is_active(context):
            (answer,) = yield [context.call(_model(context.group.rank), ActorMessage("ask"), writes=False)]
            copy_into(context.parameters, list(answer.tensors))
        yield from super().leave(context, state)
        if not self.is_active(context):
            yield from _update_model(context, context.group.rank, "replace", copies(context.parameters))
        yield from context.mean([torch.zeros(1)])


def _model(member: int) -> str:
    return f"model-{member}"


def _update_model(
    context: AsyncGossipContext, member: int, kind: str, tensors: Sequence[Tensor]
) -> Communication[list[Tensor]]:
    """Send an update to the actor of a passive member's model, and return the model afterwards."""
    (answer,) = yield [context.call(_model(member), ActorMessage(kind, {}, tuple(tensors)), writes=True)]
    return list(answer.tensors)
