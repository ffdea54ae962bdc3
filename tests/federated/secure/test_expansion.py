"""What a client of a session sends and receives, beside what the paper prints."""

from __future__ import annotations

import numpy as np
import pytest
from bench.secure import FLOWER_BYTES, one_client

from laconic.federated.secure.session import run_session
from laconic.federated.secure.terms import Terms, sum_bits


def published(clients: int, numel: int, value_bits: int) -> float:
    """The paper's count of bytes: 2n keys, 5n - 4 shares of 256 bits, and the vector."""
    return 64 * clients + 32 * (5 * clients - 4) + numel * sum_bits(clients, 2**value_bits) / 8


@pytest.mark.technique("secagg", check=3)
@pytest.mark.parametrize(("clients", "numel"), [(3, 20_001), (8, 60_000), (20, 100_000)])
def test_bytes_of_each_client_are_the_papers_count_within_one_per_cent(clients: int, numel: int) -> None:
    terms = Terms(clients, 2, numel, sum_bits(clients, 2**16))
    found = run_session(terms, lambda number: np.full(numel, number))
    each = found.up_bytes.sum(1) + found.down_bytes.sum(1)
    assert each.tolist() == pytest.approx([published(clients, numel, 16)] * clients, rel=0.01)


def test_one_client_of_the_bench_has_the_bytes_of_a_client_in_a_session() -> None:
    cost = one_client(10, 1000)
    found = run_session(Terms(10, 7, 1000, sum_bits(10, 2**16)), lambda number: np.zeros(1000, dtype=int))
    assert (cost.up_bytes, cost.down_bytes) == (found.up_bytes[0].sum(), found.down_bytes[0].sum())


@pytest.mark.long
@pytest.mark.technique("secagg", check=3)
@pytest.mark.evidence("secagg")
def test_the_expansion_of_a_thousand_clients_is_the_published_one() -> None:
    """1.73 for 2^10 clients and 2^20 values of 16 bits, in whole messages and with all masks expanded."""
    cost = one_client(2**10, 2**20)
    assert cost.expansion == pytest.approx(1.73, rel=0.02)
    assert cost.up_bytes + cost.down_bytes == pytest.approx(published(2**10, 2**20, 16), rel=0.01)
    assert (cost.up_bytes + cost.down_bytes) / 2**20 < FLOWER_BYTES / 2
