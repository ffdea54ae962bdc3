"""What the server sends down: whole vectors, or compressed changes of what clients have seen."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from laconic.compression.none import Identity
from laconic.errors import LaconicError
from laconic.federated.layout import Vectors
from laconic.federated.messages import SERVER, Message, Wire

Change = tuple[int, Message]
"""The version of the server's vectors, and the message that leads there from the one before."""


def after(wire: Wire, seen: Vectors, changes: Sequence[Change]) -> dict[str, Tensor]:
    """Return what somebody sees after these changes who has seen these vectors."""
    found = dict(seen)
    for version, message in changes:
        found = {name: found[name] + x for name, x in wire.decode(message, SERVER, version).items()}
    return found


class Downlink:
    """The server's side, for all clients.

    Without compression every client of a round gets the vectors. With it the server publishes, at each version, the
    encoded difference between its vectors and what those who followed have seen; what was not sent stays in that
    difference. A client that missed versions fetches their messages, or the vectors as they have been seen by the
    others, where that is shorter.
    """

    def __init__(self, wire: Wire, clients: int) -> None:
        self._wire = wire
        self._plain = isinstance(wire.compressor, Identity)
        self._seen: dict[str, Tensor] = {}
        self._changes: deque[Change] = deque()  # the last ones, as many as are shorter than the vectors together
        self._published = -1
        self.edition = -1
        """How often something was published, counted from 0."""
        self._followed = np.full(clients, -1, dtype=np.int64)  # the last edition of each client

    def publish(self, vectors: Vectors, version: int) -> dict[str, Tensor]:
        """Return what clients see of these vectors; they are encoded once for each version."""
        if version > self._published:
            if self._plain or not self._seen:
                self._seen = dict(vectors)
            elif any(vector.numel() != self._seen[name].numel() for name, vector in vectors.items()):
                raise LaconicError("a rule whose vectors change their length is sent down as it is; write server")
            else:
                changes = {name: vector - self._seen[name] for name, vector in vectors.items()}
                message, _ = self._wire.encode(changes, {}, SERVER, version, {})
                self._seen = after(self._wire, self._seen, [(version, message)])
                self._changes.append((version, message))
                while sum(change.nbytes for _, change in self._changes) > self._whole:
                    self._changes.popleft()
            self._published, self.edition = version, self.edition + 1
        return dict(self._seen)

    def send(self, vectors: Vectors, raw: Vectors, version: int) -> tuple[dict[str, Tensor], int]:
        """Return what one client sees of vectors that are for it alone, and their bytes: encoded as they are, without a
        memory of what was left out."""
        message, _ = self._wire.encode(vectors, {}, SERVER, version, {}, raw=raw)
        return self._wire.decode(message, SERVER, version), message.nbytes

    def fetch(self, client: int, part: Vectors) -> int:
        """Return the bytes that a client is sent so that it sees this part of what was published last: compressed
        messages are sent as a whole."""
        if self._plain:
            return sum(vector.nbytes for vector in part.values())
        missed = self.since(int(self._followed[client]))
        self._followed[client] = self.edition
        return self._whole if missed is None else sum(change.nbytes for _, change in missed)

    def since(self, edition: int) -> list[Change] | None:
        """Return the changes that somebody lacks who has seen this edition, or nothing where the vectors as they are
        now are shorter, or where there are no changes."""
        lacks = self.edition - edition
        if self._plain or edition < 0 or not 0 <= lacks <= len(self._changes):
            return None
        return list(self._changes)[len(self._changes) - lacks :]

    def state(self) -> dict[str, Any]:
        """Return what `restore` reads back, as nested dicts and lists of numbers, text and tensors."""
        changes = []
        for version, message in self._changes:
            fields, tensors = message.written()
            changes.append({"version": version, "fields": fields, "tensors": list(tensors)})
        return {"seen": self._seen, "changes": changes, "published": self._published, "edition": self.edition}

    def restore(self, state: dict[str, Any]) -> None:
        self._seen, self._published, self.edition = dict(state["seen"]), state["published"], state["edition"]
        self._changes = deque((x["version"], Message.read(x["fields"], x["tensors"])) for x in state["changes"])

    @property
    def _whole(self) -> int:
        return sum(vector.nbytes for vector in self._seen.values())
