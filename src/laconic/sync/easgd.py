"""Elastic averaging: workers train on their own and are pulled towards a centre that a server holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.architecture.server.actor import Pull, Push
from laconic.architecture.server.store import Store
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import ServerContext
from laconic.sync.server import ServerSync
from laconic.sync.server_round import add_contribution, has_contributed, open_round, take_if_complete
from laconic.sync.tensor_lists import copies
from laconic.worker import Communication, Field

_SENT = "sent"


@technique("easgd", aliases=["eamsgd", "elastic_averaging"], paper="Zhang, Choromanska, LeCun, NIPS 2015")
@dataclass(frozen=True)
class EASGD(ServerSync):
    """Every `period` steps, move a worker's model x and the centre c towards each other by d = alpha·(x - c).

    So the sum x + c stays the same, whatever other workers do in between. Local steps are the user's optimizer's; with
    Nesterov momentum this is EAMSGD. The gradient that follows an exchange was computed before it, as in the paper's
    algorithm. `synchronous` lets all exchanges of a round see the same centre, which then moves by their sum. After
    `laconic.finish` all workers hold the centre, which is the method's result. Reading chosen: the period stays
    constant, as in the paper.
    """

    period: int = knob(10, low=1, gentler="less", doc="local steps between exchanges with the centre")
    beta: float = knob(0.9, above=0, doc="the elastic rate alpha times the number of workers")
    synchronous: bool = knob(False, doc="whether all workers exchange with the same centre")

    # ------------------------------------------------------------------------------------------ server

    def open(self, store: Store) -> None:
        open_round(store)

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        if self.synchronous:
            add_contribution(store, push)
            self._move(store)
        else:
            store.add(push.tensors)
        return {}

    def _move(self, store: Store) -> None:
        if (everything := take_if_complete(store)) is not None:
            store.add(everything[0])

    def lost(self, store: Store, worker: int) -> None:
        self._move(store)

    def readable(self, store: Store, pull: Pull) -> bool:
        return not has_contributed(store, pull.worker)

    # ------------------------------------------------------------------------------------------ worker

    @torch.no_grad()
    def stepping(self, context: ServerContext, state: State) -> Communication[State]:
        if context.step % self.period == 0:
            yield from _wait_for_push(context)
            (centre,) = yield [context.server.pull()]
            alpha = self.beta / context.group.size
            pulls = [alpha * (x - c) for x, c in zip(context.parameters, centre.tensors, strict=True)]
            context.start(_SENT, _send(context, copies(pulls)))
            for parameter, pull in zip(context.parameters, pulls, strict=True):
                parameter.sub_(pull)
        context.apply()
        return state


def _send(context: ServerContext, tensors: Sequence[Tensor]) -> Communication[None]:
    yield [context.server.push(tensors, context.step)]


def _wait_for_push(context: ServerContext) -> Communication[None]:
    if context.is_in_flight(_SENT):
        yield from context.wait_for(_SENT)
