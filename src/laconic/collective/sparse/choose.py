"""Which of the three sparse sums is the cheapest, if every member's k indices are drawn independently."""

from __future__ import annotations

import math

from laconic.collective.sparse.stream import INDEX_BYTES


def expected_pairs(numel: int, k: int, size: int) -> float:
    """Return K, how many of `numel` values at least one of `size` members sends, in the mean: N(1 - (1 - k/N)ᴾ)."""
    return numel * (1 - (1 - k / numel) ** size) if numel else 0.0


def expected_costs(numel: int, k: int, size: int, value_bytes: int, latency_bytes: float) -> dict[str, float]:
    """Return the cost of each way to sum, in bytes that one link carries, by the names in `sums.SUMS`.

    - `k`: pairs of one member, the largest number.
    - `latency_bytes`: what a link carries while a message waits: latency times rate.
    """
    dense, pair = float(numel * value_bytes), INDEX_BYTES + value_bytes

    def stream(pairs: float) -> float:
        return min(pairs * pair, dense)

    rounds = math.ceil(math.log2(size)) if size > 1 else 0
    share = (size - 1) / size
    split = (size - 1 + rounds) * latency_bytes + share * stream(k)
    doubling = sum(stream(expected_pairs(numel, k, 1 << i)) for i in range(rounds))
    return {
        "recursive_double": rounds * latency_bytes + doubling,
        "split_allgather": split + share * stream(expected_pairs(numel, k, size)),
        "dense_allgather": split + share * dense,
    }


def cheapest(numel: int, k: int, size: int, value_bytes: int, latency_bytes: float) -> str:
    """Return the name of the cheapest way to sum. The dense one is taken where the sum is expected to have more than
    `delta` pairs and recursive doubling is no cheaper: streams of such a sum would be dense, and have headers."""
    costs = expected_costs(numel, k, size, value_bytes, latency_bytes)
    order = ["recursive_double", "dense_allgather", "split_allgather"]
    return min(order, key=costs.__getitem__)
