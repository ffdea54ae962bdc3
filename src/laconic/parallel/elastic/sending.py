"""How a trainer reaches the workers of an elastic pipeline."""

from __future__ import annotations

from collections.abc import Callable

from laconic.errors import WorkerLost
from laconic.worker import ActorMessage

Send = Callable[[int, ActorMessage, bool], ActorMessage]
"""Sends a message to a worker, as a write or a read, and returns the answer; raises `WorkerLost` where none came."""


class NodeLost(WorkerLost):
    """A node whose answer did not come.

    - `node`: its number.
    """

    def __init__(self, node: int, why: str) -> None:
        super().__init__(f"node {node} does not answer: {why}")
        self.node = node


def ask(send: Send, node: int, message: ActorMessage, writes: bool) -> ActorMessage:
    """Return a node's answer; where none comes, raise an error that names the node."""
    try:
        return send(node, message, writes)
    except WorkerLost as error:
        raise NodeLost(node, str(error)) from error
