"""A client's side of a session: four steps, each a message in and a message out."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from laconic.errors import LaconicError
from laconic.federated.secure.keys import KEY_BYTES, PRIME, KeyPair, derived, draw_below_prime
from laconic.federated.secure.masks import Ring, expanded, packed, reduced
from laconic.federated.secure.messages import Kind, exactly, pieces, read, read_set, set_bytes, write
from laconic.federated.secure.refusals import Refused, TooFewClients
from laconic.federated.secure.shares import SHARE_BYTES, split
from laconic.federated.secure.terms import Entropy, Terms

SEALED_BYTES = 2 * SHARE_BYTES + 16
"""A client's share of another's two secrets, encrypted and with its tag."""

NONCE = bytes(12)
"""Each key encrypts one message."""


class Client:
    """One client in one session. Each step is done once and in order; a message that is refused ends nothing, and a
    session that the server gave up leaves nothing to be unmasked.

    - `terms`: those of the session.
    - `number`: the client's.
    - `entropy`: where its secrets come from.
    """

    def __init__(self, terms: Terms, number: int, entropy: Entropy = secrets.token_bytes) -> None:
        if not 0 <= number < terms.clients:
            raise LaconicError(f"client {number} was not invited; clients are numbered from 0 to {terms.clients - 1}")
        self.terms, self.number, self._entropy = terms, number, entropy
        self._transport, self._pairwise = KeyPair.draw(entropy), KeyPair.draw(entropy)
        self._own = draw_below_prime(entropy)
        self._next: Kind | None = Kind.KEYS
        self._agreed: dict[int, bytes] = {}
        self._publics: dict[int, bytes] = {}
        self._sealed: dict[int, bytes] = {}
        self._kept: tuple[int, int] = 0, 0

    def advertise(self) -> bytes:
        """Return the client's two public keys: one for what clients send each other, one for masks."""
        self._expect(Kind.KEYS)
        self._next = Kind.SHARES
        return write(Kind.KEYS, self.terms, self.number, self._transport.public + self._pairwise.public)

    def share(self, roster: bytes) -> bytes:
        """Return shares of the client's two secrets, for each other client whose keys the roster names."""
        self._expect(Kind.SHARES)
        terms, size = self.terms, set_bytes(self.terms.clients)
        body = self._read(Kind.ROSTER, roster, size + 2 * KEY_BYTES * terms.clients)
        members = read_set(exactly(body[:size], size, "a roster's set of clients"), terms.clients)
        keys = pieces(exactly(body[size:], 2 * KEY_BYTES * len(members), "a roster's list of keys"), 2 * KEY_BYTES)
        self._enough(members, "have sent their keys")
        publics = [key[start : start + KEY_BYTES] for key in keys for start in (0, KEY_BYTES)]
        if len(set(publics)) < len(publics):
            raise Refused("a roster names one public key twice")
        own = self._transport.public + self._pairwise.public
        if self.number not in members or keys[members.index(self.number)] != own:
            raise Refused("a roster does not have this client's own keys")
        others = {member: key for member, key in zip(members, keys, strict=True) if member != self.number}
        agreed_on = {other: self._transport.agree(key[:KEY_BYTES]) for other, key in others.items()}
        seeds = split(self._own, terms.threshold, members, self._entropy)
        pairwise = split(self._pairwise.secret, terms.threshold, members, self._entropy)
        self._next = Kind.MASKED
        self._agreed, self._publics = agreed_on, {other: key[KEY_BYTES:] for other, key in others.items()}
        self._kept = seeds[self.number], pairwise[self.number]
        sealed = [
            seal(self.terms, self._agreed[other], self.number, other).encrypt(
                NONCE, _written(seeds[other]) + _written(pairwise[other]), None
            )
            for other in others
        ]
        return write(Kind.SHARES, terms, self.number, b"".join(sealed))

    def mask(self, relayed: bytes, values: NDArray[np.integer]) -> bytes:
        """Return the client's vector under its masks: of its own seed, and of those it shares with each other client
        that has sent shares.

        - `relayed`: the other clients' shares for this one.
        - `values`: whole numbers, of which those modulo two to the power of the terms' bits count.
        """
        self._expect(Kind.MASKED)
        terms, size = self.terms, set_bytes(self.terms.clients)
        if not np.issubdtype(values.dtype, np.integer) or values.shape != (terms.numel,):
            raise LaconicError(
                f"a client's vector has {terms.numel} whole numbers; this is {values.dtype}{values.shape}"
            )
        body = self._read(Kind.RELAYED, relayed, size + SEALED_BYTES * terms.clients)
        members = read_set(exactly(body[:size], size, "a set of clients"), terms.clients)
        senders = [member for member in members if member != self.number]
        sealed = pieces(exactly(body[size:], SEALED_BYTES * len(senders), "a list of shares"), SEALED_BYTES)
        self._enough(members, "have shared their secrets")
        if self.number not in members or any(sender not in self._publics for sender in senders):
            raise Refused("shares come from clients that are not on the roster, or this one's are left out")
        total = values.astype(np.uint32)  # wraps, as the ring does
        total += self_mask(terms, self._own)
        for other in senders:
            add_pairwise(terms, total, self.number, other, self._pairwise.agree(self._publics[other]))
        self._next = Kind.REVEALED
        self._sealed = dict(zip(senders, sealed, strict=True))
        return write(Kind.MASKED, terms, self.number, packed(reduced(total, terms.bits), terms.bits))

    def reveal(self, survivors: bytes) -> bytes:
        """Return a share of each client's secret that is needed now: of the seed of those whose vectors have arrived,
        of the pairwise key of those that have vanished since they shared it. Never both of one client."""
        self._expect(Kind.REVEALED)
        terms, size = self.terms, set_bytes(self.terms.clients)
        body = exactly(self._read(Kind.SURVIVORS, survivors, size), size, "a list of survivors")
        alive = read_set(body, terms.clients)
        shared = sorted([*self._sealed, self.number])
        self._enough(alive, "have sent their vectors")
        if self.number not in alive or not set(alive) <= set(shared):
            raise Refused("a list of survivors leaves this client out, or names one that has shared no secrets")
        opened = {other: self._open(other, sealed) for other, sealed in self._sealed.items()}
        opened[self.number] = _written(self._kept[0]) + _written(self._kept[1])
        self._next = None
        shares = [
            opened[member][:SHARE_BYTES] if member in alive else opened[member][SHARE_BYTES:] for member in shared
        ]
        return write(Kind.REVEALED, terms, self.number, b"".join(shares))

    def _expect(self, step: Kind) -> None:
        """Refuse what is not the client's next step."""
        if self._next != step:
            raise Refused(f"client {self.number} does each step once and in order; this is not the one for now")

    def _read(self, kind: Kind, message: bytes, most: int) -> bytes:
        client, body = read(kind, self.terms, message, most)
        if client != self.number:
            raise Refused(f"a message for client {client} came to client {self.number}")
        return body

    def _enough(self, members: Sequence[int], what: str) -> None:
        if len(members) < self.terms.threshold:
            raise TooFewClients(
                f"{len(members)} clients {what}, and {self.terms.threshold} are needed; client {self.number} reveals "
                "nothing more"
            )

    def _open(self, sender: int, sealed: bytes) -> bytes:
        try:
            return seal(self.terms, self._agreed[sender], sender, self.number).decrypt(NONCE, sealed, None)
        except InvalidTag as error:
            raise Refused(f"the shares of client {sender} were changed on their way") from error


def seal(terms: Terms, secret: bytes, sender: int, receiver: int) -> AESGCM:
    """Return the cipher of the one message from a client to another, from what their keys agree on."""
    return AESGCM(derived(secret, terms.session, b"share %d %d" % (sender, receiver)))


def self_mask(terms: Terms, seed: int) -> Ring:
    """Return the mask of a client's own seed."""
    return expanded(derived(_written(seed), terms.session, b"own"), terms.numel)


def add_pairwise(terms: Terms, total: Ring, client: int, other: int, secret: bytes) -> None:
    """Add in place the mask that a client shares with another: the one with the smaller number adds it, and the other
    subtracts it."""
    first, second = sorted((client, other))
    mask = expanded(derived(secret, terms.session, b"pair %d %d" % (first, second)), terms.numel)
    if client == first:
        total += mask
    else:
        total -= mask


def share_of(written: bytes) -> int:
    """Return a share, or refuse one that is no element of the field."""
    if (found := int.from_bytes(written, "little")) >= PRIME:
        raise Refused("a share is no element of the field")
    return found


def _written(number: int) -> bytes:
    return number.to_bytes(SHARE_BYTES, "little")
