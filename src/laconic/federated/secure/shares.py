"""Shamir's sharing of a secret: points of a random polynomial over a prime field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from laconic.federated.secure.keys import PRIME, draw_below_prime
from laconic.federated.secure.terms import Entropy

SHARE_BYTES = 32


def split(secret: int, threshold: int, holders: Iterable[int], entropy: Entropy) -> dict[int, int]:
    """Return a share for each holder, of which any `threshold` give the secret and fewer say nothing about it.

    The secret is the value at zero of a polynomial whose other coefficients are drawn; holder k's share is the value at
    k + 1.
    """
    coefficients = [*(draw_below_prime(entropy) for _ in range(threshold - 1)), secret]
    return {holder: _value(coefficients, holder + 1) for holder in holders}


def weights_at_zero(holders: Sequence[int]) -> dict[int, int]:
    """Return by what each holder's share is multiplied, so that the sum is the secret: Lagrange's coefficients."""
    points = [holder + 1 for holder in holders]
    weights = {}
    for holder, x in zip(holders, points, strict=True):
        above, below = 1, 1
        for other in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        weights[holder] = above * pow(below, -1, PRIME) % PRIME
    return weights


def join(shares: Mapping[int, int], weights: Mapping[int, int]) -> int:
    """Return the secret of the shares of these holders, whose weights are known."""
    return sum(weight * shares[holder] for holder, weight in weights.items()) % PRIME


def _value(coefficients: Sequence[int], x: int) -> int:
    """Return a polynomial's value, its highest coefficient first."""
    value = 0
    for coefficient in coefficients:
        value = (value * x + coefficient) % PRIME
    return value
