"""What rules over a parameter server share: both halves of a rule stand in one class."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.architecture.server.actor import Rule
from laconic.architecture.server.client import Pulled
from laconic.sync.base import Section, State, Sync, average_buffers
from laconic.sync.tensors import copy_into
from laconic.worker import Field, whole


class ServerSync(Sync, Rule):
    """A rule with a worker's half (`stepping`) and a server's half (`open`, `receive`, `readable`, `view`, `lost`).

    The server's half sees one shard's `Store` and never waits: reads wait, until `readable` says so.
    """

    talks: ClassVar[str] = "server"
    late: ClassVar[bool] = True
    replaces_step: ClassVar[bool] = True
    replicas_differ: ClassVar[bool] = True
    races: ClassVar[bool] = True

    def leave(self, section: Section, state: State) -> Generator[Any, Any, None]:
        """When all have come, everybody takes over the server's model: replicas are only views of it.

        Who comes first has pushed for the last time, and those who still step are not to wait for it.
        """
        section.server.rest()
        yield from section.mean([torch.zeros(1)])
        (pulled,) = yield [section.server.peek()]
        take_over(section, pulled)
        yield from average_buffers(section)


class PushPull(ServerSync):
    """The worker's half of most asynchronous rules: push a gradient, pull the model, which is the server's alone."""

    def settings(self, section: Section) -> dict[str, Field]:
        """What the server's optimizer is told beside the worker's own settings, as `set.GROUP.NAME`."""
        return {}

    def outgoing(self, section: Section) -> list[Tensor]:
        """What is pushed, one tensor per parameter."""
        return section.gradients

    def stepping(self, section: Section, state: State) -> Generator[Any, Any, State]:
        pushing = section.server.push(self.outgoing(section), section.step, settings=self.settings(section))
        (pushed, pulled) = yield [pushing, section.server.pull()]
        take_over(section, pulled)
        section.note(staleness=max(whole(fields, "staleness") for fields in pushed.fields))
        if all("touched" in fields for fields in pushed.fields):
            section.note(touched=sum(whole(fields, "touched") for fields in pushed.fields))
        return state


def take_over(section: Section, pulled: Pulled) -> None:
    """The values that were read become this worker's parameters."""
    copy_into(section.parameters, pulled.tensors)
