"""The server's side of a session: it collects one kind of message after the other, and learns the sum alone."""

from __future__ import annotations

import numpy as np

from laconic.errors import LaconicError
from laconic.federated.secure.client import SEALED_BYTES, add_pairwise, self_mask, share_of
from laconic.federated.secure.keys import KEY_BYTES, KeyPair
from laconic.federated.secure.masks import Ring, packed_bytes, reduced, unpacked
from laconic.federated.secure.messages import Kind, exactly, pieces, read, write, write_set
from laconic.federated.secure.refusals import Refused, TooFewClients
from laconic.federated.secure.shares import SHARE_BYTES, join, weights_at_zero
from laconic.federated.secure.terms import Terms

_NEXT = {Kind.KEYS: Kind.SHARES, Kind.SHARES: Kind.MASKED, Kind.MASKED: Kind.REVEALED}
_WHAT = {
    Kind.KEYS: "have sent their keys",
    Kind.SHARES: "have shared their secrets",
    Kind.MASKED: "have sent their vectors",
    Kind.REVEALED: "have revealed shares",
}


class Server:
    """The server of one session.

    `receive` takes messages of the present phase, in any order, one of each client; `close` ends the phase and returns
    what each client that is still there is sent. After the fourth `close` there is `total`. Vectors are added as they
    arrive: the server keeps their sum, which is as masked as they are.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.phase: Kind | None = Kind.KEYS
        self._came: dict[Kind, dict[int, bytes]] = {kind: {} for kind in _WHAT}
        self._masked: Ring | None = np.zeros(terms.numel, dtype=np.uint32)
        self._total: Ring | None = None

    def receive(self, message: bytes) -> None:
        """Take a client's message of the present phase, or refuse it and remain as before."""
        phase, terms = self.phase, self.terms
        if phase is None:
            raise Refused("the session is over")
        wanted = self._length(phase)
        client, body = read(phase, terms, message, wanted)
        if phase != Kind.KEYS and client not in self._members(phase):
            raise Refused(f"client {client} has missed an earlier phase")
        if client in self._came[phase]:
            raise Refused(f"client {client} has sent this already, and it counts once")
        exactly(body, wanted, f"what client {client} has sent")
        if phase == Kind.MASKED:
            assert self._masked is not None
            self._masked += unpacked(body, terms.bits, terms.numel)
            body = b""
        if phase == Kind.REVEALED:
            for piece in pieces(body, SHARE_BYTES):
                share_of(piece)
        self._came[phase][client] = body

    def close(self) -> dict[int, bytes]:
        """End the phase: return the next message for each client that took part in it, none after the last one.

        With fewer clients than the threshold the session ends, and what was collected is forgotten.
        """
        phase = self.phase
        if phase is None:
            raise Refused("the session is over")
        present = self._present(phase)
        if len(present) < self.terms.threshold:
            self.phase, self._masked = None, None
            self._came = {kind: {} for kind in _WHAT}
            raise TooFewClients(
                f"{len(present)} of {self.terms.clients} clients {_WHAT[phase]}, and {self.terms.threshold} are "
                "needed: the session ends without a sum, and can be repeated with fresh keys"
            )
        self.phase = _NEXT.get(phase)
        if phase == Kind.KEYS:
            return self._roster(present)
        if phase == Kind.SHARES:
            return self._relayed(present)
        if phase == Kind.MASKED:
            survivors = write_set(present, self.terms.clients)
            return {client: write(Kind.SURVIVORS, self.terms, client, survivors) for client in present}
        self._unmask(present)
        return {}

    @property
    def survivors(self) -> tuple[int, ...]:
        """The clients whose vectors have arrived."""
        return self._present(Kind.MASKED)

    @property
    def total(self) -> Ring:
        """The sum of the survivors' vectors, modulo two to the power of the terms' bits."""
        if self._total is None:
            raise LaconicError("a session has no sum before its last phase is closed")
        return self._total

    def _present(self, phase: Kind) -> tuple[int, ...]:
        return tuple(sorted(self._came[phase]))

    def _members(self, phase: Kind) -> tuple[int, ...]:
        """Return who may send a message of this phase: those that sent one of the phase before."""
        before = next(earlier for earlier, later in _NEXT.items() if later == phase)
        return self._present(before)

    def _length(self, phase: Kind) -> int:
        """Return the bytes of a client's message in this phase."""
        if phase == Kind.KEYS:
            return 2 * KEY_BYTES
        if phase == Kind.SHARES:
            return SEALED_BYTES * (len(self._came[Kind.KEYS]) - 1)
        if phase == Kind.MASKED:
            return packed_bytes(self.terms.numel, self.terms.bits)
        return SHARE_BYTES * len(self._came[Kind.SHARES])

    def _roster(self, present: tuple[int, ...]) -> dict[int, bytes]:
        keys = self._came[Kind.KEYS]
        roster = write_set(present, self.terms.clients) + b"".join(keys[client] for client in present)
        return {client: write(Kind.ROSTER, self.terms, client, roster) for client in present}

    def _relayed(self, present: tuple[int, ...]) -> dict[int, bytes]:
        """Return to each client what the others have encrypted for it."""
        roster = self._present(Kind.KEYS)
        sealed = {
            sender: dict(
                zip(
                    [c for c in roster if c != sender],
                    pieces(self._came[Kind.SHARES][sender], SEALED_BYTES),
                    strict=True,
                )
            )
            for sender in present
        }
        members = write_set(present, self.terms.clients)
        return {
            client: write(
                Kind.RELAYED,
                self.terms,
                client,
                members + b"".join(sealed[sender][client] for sender in present if sender != client),
            )
            for client in present
        }

    def _unmask(self, helpers: tuple[int, ...]) -> None:
        """Take off the seeds' masks of those whose vectors arrived, and the pairwise ones of those that vanished."""
        terms, total = self.terms, self._masked
        assert total is not None
        self._masked = None
        shared, survivors = self._present(Kind.SHARES), self.survivors
        chosen = helpers[: terms.threshold]
        weights = weights_at_zero(chosen)
        revealed = {helper: pieces(self._came[Kind.REVEALED][helper], SHARE_BYTES) for helper in chosen}
        for place, client in enumerate(shared):
            secret = join({helper: share_of(revealed[helper][place]) for helper in chosen}, weights)
            if client in survivors:
                total -= self_mask(terms, secret)
                continue
            keys, pair = self._came[Kind.KEYS], KeyPair(secret)
            if pair.public != keys[client][KEY_BYTES:]:
                raise Refused(f"the revealed shares do not give client {client}'s key; the session ends without a sum")
            for other in survivors:  # what the vanished one would have added
                add_pairwise(terms, total, client, other, pair.agree(keys[other][KEY_BYTES:]))
        self._total = reduced(total, terms.bits)
