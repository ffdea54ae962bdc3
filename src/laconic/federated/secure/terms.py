"""What all parties of a session agree on before it begins."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from laconic.errors import LaconicError

Entropy = Callable[[int], bytes]
"""Returns so many random bytes: `secrets.token_bytes`, where nothing is to be repeated."""

SESSION_BYTES = 16
MOST_BITS = 32
MOST_CLIENTS = 2**16


@dataclass(frozen=True)
class Terms:
    """The terms of one session.

    - `clients`: how many clients are invited; they are numbered from 0.
    - `threshold`: how many of them are needed to the end; fewer learn nothing together.
    - `numel`: the length of the clients' vectors.
    - `bits`: sums are taken modulo two to this power, so that every sum of all clients must fit.
    - `session`: a number that no other session has. It enters every key and every message.
    """

    clients: int
    threshold: int
    numel: int
    bits: int
    session: bytes = field(default_factory=lambda: secrets.token_bytes(SESSION_BYTES))

    def __post_init__(self) -> None:
        if not 2 <= self.threshold <= self.clients <= MOST_CLIENTS:
            raise LaconicError(
                f"{self.threshold} of {self.clients} clients is no threshold; it is at least 2, as one client alone "
                f"would be unmasked, and at most the number of clients, which is at most {MOST_CLIENTS}"
            )
        if not 1 <= self.bits <= MOST_BITS or self.numel < 1 or len(self.session) != SESSION_BYTES:
            raise LaconicError(
                f"a session has vectors of at least one number, of 1 to {MOST_BITS} bits, and an id of {SESSION_BYTES} "
                f"bytes; these have {self.numel} numbers of {self.bits} bits and {len(self.session)} bytes"
            )


def sum_bits(clients: int, values: int) -> int:
    """Return how many bits hold every sum of so many clients' numbers, each one of `values` different ones from 0."""
    return (clients * (values - 1)).bit_length()
