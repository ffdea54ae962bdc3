"""Messages of a session as bytes. A receiver knows the length of each beforehand and refuses any other."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from laconic.federated.secure.refusals import Refused
from laconic.federated.secure.terms import Terms

_HEADER = struct.Struct("<B16sI")
HEADER_BYTES = _HEADER.size


class Kind(IntEnum):
    """What a message is. Odd ones are from a client, even ones to it."""

    KEYS = 1
    ROSTER = 2
    SHARES = 3
    RELAYED = 4
    MASKED = 5
    SURVIVORS = 6
    REVEALED = 7


def write(kind: Kind, terms: Terms, client: int, body: bytes) -> bytes:
    """Return the message of this kind from a client, or to it."""
    return _HEADER.pack(kind, terms.session, client) + body


def read(kind: Kind, terms: Terms, message: bytes, most: int) -> tuple[int, bytes]:
    """Return the client of a message and its body, or refuse it: of another kind or session, or longer than any can
    be."""
    if not isinstance(message, bytes) or not HEADER_BYTES <= len(message) <= HEADER_BYTES + most:
        raise Refused(f"what should be a message of {kind.name.lower()} is no bytes of a length that one can have")
    found, session, client = _HEADER.unpack_from(message)
    if session != terms.session:
        raise Refused("a message belongs to another session, and is not taken a second time")
    if found != kind:
        raise Refused(f"a message of kind {found} came where one of {kind.name.lower()} is waited for")
    if client >= terms.clients:
        raise Refused(f"client {client} was not invited; clients are numbered from 0 to {terms.clients - 1}")
    return client, message[HEADER_BYTES:]


def exactly(body: bytes, wanted: int, what: str) -> bytes:
    """Return a body of this length, or refuse it."""
    if len(body) != wanted:
        raise Refused(f"{what} has {len(body)} bytes in place of {wanted}")
    return body


def set_bytes(clients: int) -> int:
    """Return the bytes of a set of clients."""
    return -(-clients // 8)


def write_set(members: Sequence[int], clients: int) -> bytes:
    """Return a set of clients, a bit for each."""
    present = np.zeros(clients, dtype=bool)
    present[list(members)] = True
    return np.packbits(present, bitorder="little").tobytes()


def read_set(written: bytes, clients: int) -> tuple[int, ...]:
    """Return the members of a set, or refuse it where it names clients beyond the last."""
    present = np.unpackbits(np.frombuffer(written, dtype=np.uint8), bitorder="little")
    if present[clients:].any():
        raise Refused("a set of clients names some that were not invited")
    return tuple(np.flatnonzero(present[:clients]).tolist())


def pieces(body: bytes, size: int) -> list[bytes]:
    """Return the parts of this size that a body consists of."""
    return [body[start : start + size] for start in range(0, len(body), size)]
