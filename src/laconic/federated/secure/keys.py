"""Key agreement: X25519 between two clients, and HKDF for a key of each purpose."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from laconic.federated.secure.refusals import Refused
from laconic.federated.secure.terms import Entropy

PRIME = 2**255 - 19
"""Secrets are numbers below it, so that each is an element of the field in which it is shared."""

KEY_BYTES = 32


def draw_below_prime(entropy: Entropy) -> int:
    """Return a number below the prime, all equally likely."""
    while (drawn := int.from_bytes(entropy(KEY_BYTES), "little") >> 1) >= PRIME:
        pass
    return drawn


class KeyPair:
    """A secret number and the public key that belongs to it. (X25519 sets and clears some of the secret's bits by
    itself.)"""

    def __init__(self, secret: int) -> None:
        self.secret = secret
        self._private = X25519PrivateKey.from_private_bytes(secret.to_bytes(KEY_BYTES, "little"))
        self.public = self._private.public_key().public_bytes_raw()

    @classmethod
    def draw(cls, entropy: Entropy) -> KeyPair:
        """Return a new pair of keys."""
        return cls(draw_below_prime(entropy))

    def agree(self, public: bytes) -> bytes:
        """Return what two parties agree on: each from its own secret and the other's public key."""
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:  # a point of small order
            raise Refused("a public key is none, and nobody can agree with it on a secret") from error


def derived(material: bytes, session: bytes, purpose: bytes) -> bytes:
    """Return the key of a purpose, which tells nothing of those of other purposes."""
    return HKDF(SHA256(), KEY_BYTES, salt=session, info=b"laconic secagg 1/" + purpose).derive(material)
