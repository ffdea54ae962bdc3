"""What rules over a parameter server share: both halves of a rule stand in one class."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.architecture.server.actor import ServerRule
from laconic.architecture.server.client import Pulled
from laconic.sync.base import State, Sync, SyncContext, average_buffers
from laconic.sync.tensors import copy_into
from laconic.worker import Field, whole


class ServerSync(Sync, ServerRule):
    """A rule with a worker's half (`stepping`) and a server's half (`open`, `receive`, `readable`, `view`, `lost`).

    The server's half sees one shard's `Store` and never waits: reads wait, until `readable` says so.
    """

    talks: ClassVar[str] = "server"
    late: ClassVar[bool] = True
    replaces_step: ClassVar[bool] = True
    replicas_differ: ClassVar[bool] = True
    races: ClassVar[bool] = True

    def leave(self, context: SyncContext, state: State) -> Generator[Any, Any, None]:
        """When all have come, everybody takes over the server's model: replicas are only views of it.

        Who comes first has pushed for the last time, and those who still step are not to wait for it.
        """
        context.server.pause_pushes()
        yield from context.mean([torch.zeros(1)])
        (pulled,) = yield [context.server.pull_now()]
        take_over(context, pulled)
        yield from average_buffers(context)


class PushPull(ServerSync):
    """The worker's half of most asynchronous rules: push a gradient, pull the model, which is the server's alone."""

    def settings(self, context: SyncContext) -> dict[str, Field]:
        """What the server's optimizer is told beside the worker's own settings, as `set.GROUP.NAME`."""
        return {}

    def outgoing(self, context: SyncContext) -> list[Tensor]:
        """What is pushed, one tensor per parameter."""
        return context.gradients

    def stepping(self, context: SyncContext, state: State) -> Generator[Any, Any, State]:
        pushing = context.server.push(self.outgoing(context), context.step, settings=self.settings(context))
        (pushed, pulled) = yield [pushing, context.server.pull()]
        take_over(context, pulled)
        context.note(staleness=max(whole(fields, "staleness") for fields in pushed.fields))
        if all("touched" in fields for fields in pushed.fields):
            context.note(touched=sum(whole(fields, "touched") for fields in pushed.fields))
        return state


def take_over(context: SyncContext, pulled: Pulled) -> None:
    """The values that were read become this worker's parameters."""
    copy_into(context.parameters, pulled.tensors)
