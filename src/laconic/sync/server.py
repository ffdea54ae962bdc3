"""Base classes of rules over a parameter server, which hold the worker's and the server's half in one class."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from laconic.architecture.server.actor import ServerRule
from laconic.architecture.server.client import Pulled
from laconic.compression.base import Compressor
from laconic.compression.optional import refusal_of_receiver
from laconic.sync.base import State, Sync, average_buffers
from laconic.sync.contexts import ServerContext
from laconic.sync.tensor_lists import copy_into
from laconic.worker import Communication, Field, whole


class ServerSync(Sync[ServerContext], ServerRule):
    """A rule with a worker's half (`stepping`) and a server's half (`open`, `receive`, `readable`, `view`, `lost`).

    The server's half sees one shard's `Store` and never waits; a read waits until `readable` allows it.
    """

    talks: ClassVar[str] = "server"
    late: ClassVar[bool] = True
    replaces_step: ClassVar[bool] = True
    replicas_differ: ClassVar[bool] = True
    races: ClassVar[bool] = True

    def objects_to(self, compressor: Compressor) -> str | None:
        return refusal_of_receiver(compressor)

    @property
    def guarantee(self) -> str:
        return "staleness without a bound: a rate in the mean delay only (Koloskova et al., 2022)"

    def leave(self, context: ServerContext, state: State) -> Communication[None]:
        """Wait until all workers have arrived, then replace every replica by the server's model.

        A worker that arrives early has pushed for the last time, and workers that still step must not wait for it.
        """
        context.server.pause_pushes()
        yield from context.mean([torch.zeros(1)])
        (pulled,) = yield [context.server.pull_now()]
        take_over(context, pulled)
        yield from average_buffers(context)


def bounded_staleness(bound: int) -> str:
    """Return what theory guarantees where no update is older than this bound."""
    return f"staleness at most {bound}: SGD's rate, slowed by the bound (Ho et al., 2013)"


class PushPull(ServerSync):
    """The worker's half of most asynchronous rules: push a gradient, pull the model, which is the server's alone."""

    def settings(self, context: ServerContext) -> dict[str, Field]:
        """Return settings for the server's optimizer beyond those of the worker's own, keyed `set.GROUP.NAME`."""
        return {}

    def outgoing(self, context: ServerContext) -> list[Tensor]:
        """Return the tensors to push, one per parameter."""
        return context.gradients

    def stepping(self, context: ServerContext, state: State) -> Communication[State]:
        pushing = context.server.push(self.outgoing(context), context.step, settings=self.settings(context))
        (pushed, pulled) = yield [pushing, context.server.pull()]
        take_over(context, pulled)
        context.note(staleness=max(whole(fields, "staleness") for fields in pushed.fields))
        if all("touched" in fields for fields in pushed.fields):
            context.note(touched=sum(whole(fields, "touched") for fields in pushed.fields))
        return state


def take_over(context: ServerContext, pulled: Pulled) -> None:
    """Copy the values that were pulled into this worker's parameters."""
    copy_into(context.parameters, pulled.tensors)
