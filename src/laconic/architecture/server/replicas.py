"""A shard with replicas: writes are sent to all of them, reads are answered by the first that is alive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from laconic.errors import WorkerLost
from laconic.worker import ActorMessage, Handle, Priority, Worker


@dataclass(eq=False)
class Replicas:
    """The addresses of one shard and its replicas, without those that are lost.

    A write is acknowledged when every copy has it, so that it outlives any one of them. Copies apply the
    writes of different workers in their order of arrival, and so may differ in rounding, and in more where order
    matters.
    """

    worker: Worker
    addresses: list[str]

    def write(self, message: ActorMessage, priority: Priority | None = None) -> Handle:
        """Send a write to every copy; the handle completes when all have acknowledged it."""
        sent = {address: self.worker.call(address, message, True, priority) for address in self.addresses}
        return sent[self.addresses[0]] if len(sent) == 1 else _ReplicatedWrite(self, sent)

    def read(self, message: ActorMessage) -> Handle:
        """Send a read to the first copy, and to the next if that one is lost."""
        first = self.worker.call(self.addresses[0], message, writes=False)
        return first if len(self.addresses) == 1 else _FailoverRead(self, message, self.addresses[0], first)

    def drop(self, address: str, error: WorkerLost) -> None:
        """Forget a copy that is lost; raise the error if it was the last one."""
        if address in self.addresses:
            if len(self.addresses) == 1:
                raise error
            self.addresses.remove(address)


class _ReplicatedWrite:
    def __init__(self, copies: Replicas, handles: dict[str, Handle]) -> None:
        self._copies, self._handles = copies, handles

    def done(self) -> bool:
        return all(handle.done() for handle in self._handles.values())

    def wait(self) -> Any:
        answers = []
        for address, handle in self._handles.items():
            try:
                answers.append(handle.wait())
            except WorkerLost as error:
                self._copies.drop(address, error)
        return answers[0]


class _FailoverRead:
    def __init__(self, copies: Replicas, message: ActorMessage, address: str, handle: Handle) -> None:
        self._copies, self._message, self._address, self._handle = copies, message, address, handle

    def done(self) -> bool:
        return self._handle.done()

    def wait(self) -> Any:
        while True:
            try:
                return self._handle.wait()
            except WorkerLost as error:
                self._copies.drop(self._address, error)
                self._address = self._copies.addresses[0]
                self._handle = self._copies.worker.call(self._address, self._message, writes=False)
