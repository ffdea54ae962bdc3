"""Flower's nodes inside one process: a grid that calls real ClientApps, so that any reply can be spoiled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Meddle = Callable[[int, Message], RecordDict | Error | None]
"""What a node sends in place of its reply, which is the last argument; None for that reply."""


@dataclass
class Inside(Grid):  # type: ignore[misc]
    """Nodes by their ids, each with the number of its client; `meddle` sees every reply to work, and `silent` ones do
    their work, of which no reply arrives."""

    app: ClientApp
    clients: Mapping[int, int]
    meddle: Meddle = field(default=lambda node, reply: None)
    silent: Collection[int] = ()

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self._contexts = {
            node: Context(1, node, {"partition-id": client}, RecordDict(), {}) for node, client in self.clients.items()
        }
        self._replies: dict[str, Message] = {}
        self._ids = count()

    def get_node_ids(self) -> Iterable[int]:
        return list(self.clients)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._sent(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(one) for one in message_ids if one in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _sent(self, message: Message) -> str:
        own, node = str(next(self._ids)), message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = own  # as the SuperLink gives it
        reply = self.app(message, self._contexts[node])
        other = self.meddle(node, reply) if message.metadata.message_type == "train" else None
        if node in self.silent and message.metadata.message_type == "train":
            return own
        self._replies[own] = reply if other is None else Message(other, reply_to=message)
        return own

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError
