"""Sessions of secure aggregation for the tests: entropy that can be repeated, drop-out patterns and what must come."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from laconic.federated.secure.client import Client
from laconic.federated.secure.messages import Kind
from laconic.federated.secure.server import Server
from laconic.federated.secure.session import PHASES, Session, run_session
from laconic.federated.secure.terms import Entropy, Terms


def seeded(seed: int) -> Entropy:
    """Return bytes that depend on a seed."""
    return np.random.default_rng(seed).bytes


def check(terms: Terms, vectors: np.ndarray, vanishing: Mapping[int, Kind], seed: int) -> Session:
    """Run a session, and compare its sum with that of the integers, or its end with the number of those left."""
    found = run_session(terms, lambda number: vectors[number], vanishing, seeded(seed))
    left = [[c for c in range(terms.clients) if vanishing.get(c, Kind.REVEALED + 1) > phase] for phase in PHASES]
    if min(map(len, left)) < terms.threshold:
        assert found.total is None and found.ended is not None and found.survivors == ()
        assert f"{next(len(some) for some in left if len(some) < terms.threshold)} of" in str(found.ended)
    else:
        survivors = left[PHASES.index(Kind.MASKED)]
        assert found.survivors == tuple(survivors) and found.total is not None
        assert np.array_equal(found.total, vectors[survivors].sum(0) % 2**terms.bits)
    return found


class Manual:
    """A session whose messages a test handles itself."""

    def __init__(self, clients: int = 4, threshold: int = 3, numel: int = 5, bits: int = 20, seed: int = 0) -> None:
        self.terms = Terms(clients, threshold, numel, bits)
        self.vectors = np.random.default_rng(seed).integers(0, 2**16, (clients, numel))
        self.server = Server(self.terms)
        self.clients = [Client(self.terms, number, seeded(1000 * seed + number)) for number in range(clients)]

    def answer(self, number: int, sent: Mapping[int, bytes]) -> bytes:
        """Return a client's message of the server's present phase."""
        client = self.clients[number]
        match self.server.phase:
            case Kind.KEYS:
                return client.advertise()
            case Kind.SHARES:
                return client.share(sent[number])
            case Kind.MASKED:
                return client.mask(sent[number], self.vectors[number])
            case _:
                return client.reveal(sent[number])

    def until(self, phase: Kind, sent: Mapping[int, bytes] | None = None) -> dict[int, bytes]:
        """Go on with all clients until the server waits for this phase; return what it has sent for it.

        - `sent`: what the server has sent last; nothing before its first phase.
        """
        sent = dict(sent or {})
        while self.server.phase != phase:
            for number in range(self.terms.clients):
                self.server.receive(self.answer(number, sent))
            sent = self.server.close()
        return sent

    def finish(self, sent: Mapping[int, bytes]) -> None:
        """Let all clients do what is left, and compare the sum."""
        while self.server.phase is not None:
            for number in sent or range(self.terms.clients):
                self.server.receive(self.answer(number, sent))
            sent = self.server.close()
        survivors = list(self.server.survivors)
        assert np.array_equal(self.server.total, self.vectors[survivors].sum(0) % 2**self.terms.bits)
