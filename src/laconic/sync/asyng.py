"""AsyNG: updates pushed to chosen neighbours, and applied whenever they arrive."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from laconic.errors import ContractError
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import ActorContext, MixingContext, SteeringContext
from laconic.sync.gossip import Gossiping
from laconic.sync.tensor_lists import copies, copy_into, keep, kept
from laconic.worker import ActorMessage, Communication


class Mailbox:
    """The actor that collects what neighbours push to a worker: the sum of their updates, and how far each has come."""

    def __init__(self, tensors: Sequence[Tensor], size: int) -> None:
        self.outgoing: list[tuple[str, ActorMessage]] = []
        self._sums = [torch.zeros_like(x) for x in tensors]
        self._losses, self._steps = [math.nan] * size, [0] * size

    def write(self, sender: int, message: ActorMessage) -> ActorMessage:
        if message.kind == "take":
            taken, self._sums = self._sums, [torch.zeros_like(x) for x in self._sums]
            return ActorMessage("updates", {"losses": list(self._losses), "steps": list(self._steps)}, tuple(taken))
        if message.kind == "push":
            loss, worker = message.fields.get("loss"), message.number("worker")
            if not isinstance(loss, float) or not 0 <= worker < len(self._steps):
                raise ContractError(f"worker {sender} pushed without a loss, or for a worker that there is not")
            self._losses[worker], self._steps[worker] = loss, message.number("step")
            if message.tensors:
                self._sums = [x + y for x, y in zip(self._sums, message.tensors, strict=True)]
        return ActorMessage("received")

    def read(self, sender: int, message: ActorMessage) -> ActorMessage:
        return ActorMessage("updates", {}, tuple(self._sums))

    def lose(self, sender: int) -> None:
        """Do nothing: a worker that is gone just pushes no more."""

    def state(self) -> dict[str, Any]:
        return {"sums": list(self._sums), "losses": list(self._losses), "steps": list(self._steps)}

    def restore(self, state: dict[str, Any]) -> None:
        self._sums, self._losses, self._steps = list(state["sums"]), list(state["losses"]), list(state["steps"])


class PushContext(MixingContext, ActorContext, SteeringContext, Protocol):
    """Neighbours, an actor on every worker, and logged losses."""


def priority(loss_difference: float, iteration_gap: int) -> float:
    """Return how much it is worth to push to a neighbour: more where losses differ, less where one is far behind."""
    return abs(loss_difference) / (1 + abs(iteration_gap))


@technique("asyng", aliases=["asydfl"], paper="Chen, Xu, Xu, Huang, IEEE ICDE 2023")
@dataclass(frozen=True)
class AsyNG(Gossiping[PushContext]):
    """Step, push the update to a few neighbours, and apply what has arrived from others: nobody waits for anybody.

    x_i becomes x_i − (sum over j of W_ij·u_j), with W the mixing weights, of its own update u_i and those that arrived
    since its last step. After each step a worker chooses at most `pushes` neighbours, those of the largest |loss_i −
    loss_j|/(1 + |t_i − t_j|) by the losses that were logged and the iterations that were made; of equal ones, whoever
    has waited longest. Losses and iterations go to all neighbours in messages of a few bytes. A neighbour to which the
    last push is still under way is passed over.

    Readings chosen: that formula; a push holds all updates that its receiver has not been sent yet, so that none is
    lost and all models of a complete graph stay equal but for what is under way (each worker keeps a sum for every
    neighbour); where no loss is logged, neighbours take turns; one that has been passed over `patience` times comes
    first.
    """

    pushes: int = knob(2, low=1, gentler="more", doc="neighbours that get an update in an iteration, at most")
    patience: int = knob(4, low=1, gentler="less", doc="iterations after which a neighbour is no longer passed over")
    races: ClassVar[bool] = True
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"compression": ("none",)}
    prefers: ClassVar[Mapping[str, str]] = {"topology": "complete"}

    def check(self, context: PushContext) -> None:
        context.mixing().must_be(self.name, "doubly", "symmetric", "static")

    def init(self, context: PushContext) -> State:
        state = super().init(context)
        size = context.group.size
        for member in range(size):
            context.host(_mailbox(member), member, lambda: Mailbox(context.parameters, size))
        return state

    @staticmethod
    def neighbours(context: PushContext) -> list[int]:
        """Return this worker's neighbours, in order."""
        row = context.mixing().at(0)[context.group.rank]
        return [j for j in np.flatnonzero(row).tolist() if j != context.group.rank]

    def begin(self, context: PushContext) -> State:
        state = keep("x", copies(context.parameters))
        for j in self.neighbours(context):
            state |= keep(f"unsent.{j}", [torch.zeros_like(p) for p in context.parameters])
        return state | {"waits": torch.zeros(context.group.size, dtype=torch.int64)}

    def chosen(
        self, loss: float, step: int, losses: Sequence[float], steps: Sequence[int], waits: Mapping[int, int]
    ) -> list[int]:
        """Return the neighbours to push to.

        - `loss`, `step`: of this worker.
        - `losses`, `steps`: of all workers, as far as they are known here.
        - `waits`: of the neighbours that can be chosen, for how many iterations they have been passed over.
        """

        def rank(j: int) -> tuple[bool, float, int, int]:
            known = math.isfinite(losses[j]) and math.isfinite(loss)
            worth = priority(loss - losses[j], step - steps[j]) if known else 0.0
            return waits[j] >= self.patience, worth, waits[j], -j

        return sorted(waits, key=rank, reverse=True)[: self.pushes]

    @torch.no_grad()
    def after_step(self, context: PushContext, state: State) -> Communication[State]:
        everything, rank, neighbours = range(len(context.parameters)), context.group.rank, self.neighbours(context)
        row = context.mixing().at(0)[rank]
        before = kept(state, "x", everything)
        update = [p.detach() - x for p, x in zip(context.parameters, before, strict=True)]
        (box,) = yield [context.call(_mailbox(rank), ActorMessage("take"), writes=True)]
        moved = [x + float(row[rank]) * u + y for x, u, y in zip(before, update, box.tensors, strict=True)]
        copy_into(context.parameters, moved)
        for j in neighbours:
            for left, u in zip(kept(state, f"unsent.{j}", everything), update, strict=True):
                left.add_(u, alpha=float(row[j]))
            if context.is_in_flight(_push(j)) and context.has_arrived(_push(j)):
                yield from context.wait_for(_push(j))
        loss = context.logged("loss")
        loss, waits = math.nan if loss is None else float(loss), state["waits"].clone()
        free = {j: int(waits[j]) for j in neighbours if not context.is_in_flight(_push(j))}
        chosen = self.chosen(loss, context.step, box.fields["losses"], box.fields["steps"], free)
        waits += 1
        for j in free:
            sent: list[Tensor] = []
            if j in chosen:
                sent = kept(state, f"unsent.{j}", everything)
                state |= keep(f"unsent.{j}", [torch.zeros_like(x) for x in sent])
                waits[j] = 0
            fields = {"worker": rank, "loss": loss, "step": context.step}
            context.start(_push(j), _sent(context, j, ActorMessage("push", fields, tuple(sent))))
        context.note(pushes=float(len(chosen)))
        return state | keep("x", copies(moved)) | {"waits": waits}

    def leave(self, context: PushContext, state: State) -> Communication[None]:
        """Let all updates arrive, those not pushed yet too, and replace all models by their mean."""
        everything, rank = range(len(context.parameters)), context.group.rank
        for j in self.neighbours(context):
            if context.is_in_flight(_push(j)):
                yield from context.wait_for(_push(j))
            fields = {"worker": rank, "loss": math.nan, "step": context.step}
            unsent = tuple(kept(state, f"unsent.{j}", everything))
            yield from _sent(context, j, ActorMessage("push", fields, unsent))
        yield from context.mean([torch.zeros(1)])
        (box,) = yield [context.call(_mailbox(rank), ActorMessage("take"), writes=True)]
        copy_into(context.parameters, [p + y for p, y in zip(context.parameters, box.tensors, strict=True)])
        yield from super().leave(context, state)


def _mailbox(member: int) -> str:
    return f"mailbox-{member}"


def _push(member: int) -> str:
    return f"push-{member}"


def _sent(context: PushContext, member: int, message: ActorMessage) -> Communication[None]:
    yield [context.call(_mailbox(member), message, writes=True)]
