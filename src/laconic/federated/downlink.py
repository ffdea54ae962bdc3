"""What the server sends down: whole vectors, or compressed changes of what clients have seen."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from laconic.compression.none import Identity
from laconic.errors import LaconicError
from laconic.federated.layout import Vectors
from laconic.federated.messages import SERVER, Wire


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
        self._sizes: list[int] = []  # of the messages of all versions
        self._published = -1
        self._followed = np.full(clients, -1, dtype=np.int64)  # the last version of each client

    def publish(self, vectors: Vectors, version: int) -> dict[str, Tensor]:
        """Return what clients see of these vectors; they are encoded once for each version."""
        if self._plain:
            self._seen = dict(vectors)
        elif version > self._published:
            if not self._seen:
                self._seen = {name: vector.clone() for name, vector in vectors.items()}
                self._sizes.append(self._whole)
            elif any(vector.numel() != self._seen[name].numel() for name, vector in vectors.items()):
                raise LaconicError("a rule whose vectors change their length is sent down as it is; write server")
            else:
                changes = {name: vector - self._seen[name] for name, vector in vectors.items()}
                message, _ = self._wire.encode(changes, {}, SERVER, version, {})
                for name, change in self._wire.decode(message, SERVER, version).items():
                    self._seen[name] = self._seen[name] + change
                self._sizes.append(message.nbytes)
            self._published = version
        return dict(self._seen)

    def fetch(self, client: int) -> int:
        """Return the bytes that a client is sent so that it sees what was published last."""
        if self._plain:
            return self._whole
        missed = self._sizes[self._followed[client] + 1 :] if self._followed[client] >= 0 else [self._whole]
        self._followed[client] = len(self._sizes) - 1
        return min(sum(missed), self._whole)

    @property
    def _whole(self) -> int:
        return sum(vector.nbytes for vector in self._seen.values())
