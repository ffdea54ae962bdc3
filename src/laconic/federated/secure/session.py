"""A whole session between a server and clients in one process, with every message counted, whoever vanishes when."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.federated.partition import Integers
from laconic.federated.secure.client import Client
from laconic.federated.secure.masks import Ring
from laconic.federated.secure.messages import Kind
from laconic.federated.secure.refusals import TooFewClients
from laconic.federated.secure.server import Server
from laconic.federated.secure.terms import Entropy, Terms


@dataclass(frozen=True, eq=False)
class Session:
    """What came of a session.

    - `total`: the sum of the survivors' vectors in the ring, or None where too few clients were left.
    - `ended`: what the server said in that case.
    - `survivors`: whose vectors are in the sum.
    - `up_bytes`, `down_bytes`: what each client has sent and received in each phase, a row for each client.
    """

    total: Ring | None
    ended: TooFewClients | None
    survivors: tuple[int, ...]
    up_bytes: Integers
    down_bytes: Integers


PHASES = (Kind.KEYS, Kind.SHARES, Kind.MASKED, Kind.REVEALED)


def run_session(
    terms: Terms,
    values: Callable[[int], NDArray[np.integer]],
    vanishing: Mapping[int, Kind] | None = None,
    entropy: Entropy = secrets.token_bytes,
) -> Session:
    """Run a session from the first message to the last.

    - `values`: the vector of each client, by its number.
    - `vanishing`: from which phase on a client sends nothing more; it has not yet sent its message of that phase.
    - `entropy`: where the clients' secrets come from.
    """
    server = Server(terms)
    clients = {number: Client(terms, number, entropy) for number in range(terms.clients)}
    gone = vanishing or {}
    up, down = (np.zeros((terms.clients, len(PHASES)), dtype=np.int64) for _ in range(2))
    ended, sent = None, dict.fromkeys(clients, b"")
    for column, phase in enumerate(PHASES):
        for number, message in sent.items():
            down[number, column] = len(message)
            if gone.get(number, Kind.REVEALED + 1) <= phase:
                continue
            answer = _answer(clients[number], phase, message, values)
            up[number, column] = len(answer)
            server.receive(answer)
        try:
            sent = server.close()
        except TooFewClients as error:
            ended = error
            break
    done = ended is None
    return Session(server.total if done else None, ended, server.survivors if done else (), up, down)


def _answer(client: Client, phase: Kind, message: bytes, values: Callable[[int], NDArray[np.integer]]) -> bytes:
    if phase == Kind.KEYS:
        return client.advertise()
    if phase == Kind.SHARES:
        return client.share(message)
    if phase == Kind.MASKED:
        return client.mask(message, values(client.number))
    return client.reveal(message)
