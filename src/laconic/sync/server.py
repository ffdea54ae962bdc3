"""What rules over a parameter server share: both halves of a rule stand in one class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor

from laconic.architecture.server.client import Pulled
from laconic.architecture.server.machine import Rule
from laconic.sync.base import Section, Sync


class ServerSync(Sync, Rule):
    """A rule with a worker's half (`stepping`) and a server's half (`open`, `receive`, `readable`, `view`, `lost`).

    The server's half sees one shard's `Store` and never waits: reads wait, until `readable` says so.
    """

    talks: ClassVar[str] = "server"
    late: ClassVar[bool] = True
    replaces_step: ClassVar[bool] = True
    replicas_differ: ClassVar[bool] = True
    blocks: ClassVar[bool] = False
    """Whether a worker that falls silent is waited for, until it counts as lost."""


@torch.no_grad()
def take_over(section: Section, pulled: Pulled) -> None:
    """The values that were read become this worker's parameters."""
    copy_into(section.parameters, pulled.tensors)


@torch.no_grad()
def copy_into(parameters: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    """As they are now, whatever happens to them later."""
    return [tensor.detach().clone() for tensor in tensors]
