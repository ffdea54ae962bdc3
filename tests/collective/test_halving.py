"""Halving and doubling: a ring's bytes in few steps; fast on a switch, slow where far partners share links."""

from __future__ import annotations

import math

import numpy as np
import pytest

from laconic.collective.halving import halving_doubling, near_first, recursive_doubling
from laconic.collective.price import price
from laconic.collective.rings import ring
from laconic.network.datacenter_graphs import star, torus
from laconic.network.network_tree import Network
from tests.collective.on_virtual_workers import assert_sums
from tests.collective.test_programs import summed


@pytest.mark.technique("rhd_allreduce", check=1)
@pytest.mark.parametrize("size", [2, 4, 8, 16, 32])
def test_powers_of_two_send_a_rings_bytes_in_few_steps(size: int) -> None:
    for program in (halving_doubling(size), near_first(size)):
        assert program.steps == 2 * int(math.log2(size))
        assert program.sent_shares.tolist() == [2 * (size - 1) / size] * size
        vectors = np.random.default_rng(size).integers(-99, 99, (size, program.chunks))
        assert (summed(program, vectors) == vectors.sum(axis=0)).all()
        if size < 16:
            assert_sums(program)


@pytest.mark.technique("rhd_allreduce", check=1)
@pytest.mark.parametrize("size", [3, 5, 6, 7, 12])
def test_other_numbers_take_two_more_steps(size: int) -> None:
    program = halving_doubling(size)
    assert program.steps <= 2 * int(math.log2(size)) + 2
    assert_sums(program)


@pytest.mark.parametrize("size", [2, 8, 32])
def test_prices_are_the_formulas(size: int) -> None:
    """2 log2(p) α + 2(p-1)/p S β + (p-1)/p S γ; recursive doubling: log2(p) (α + S β + S γ)."""
    alpha, beta, gamma, depth, nbytes = 1e-4, 1e-8, 3e-9, int(math.log2(size)), 2e5
    network = Network.flat(size, 8 / beta, alpha)
    share = (size - 1) / size * nbytes
    found = price(halving_doubling(size), nbytes, network, add_seconds_per_byte=gamma).seconds
    assert found == pytest.approx(2 * depth * alpha + 2 * share * beta + share * gamma, rel=1e-9)
    found = price(recursive_doubling(size), nbytes, network, add_seconds_per_byte=gamma).seconds
    assert found == pytest.approx(depth * (alpha + nbytes * beta + nbytes * gamma), rel=1e-9)


@pytest.mark.technique("rhd_allreduce", check=2)
@pytest.mark.parametrize("size", [4, 8, 16, 32])
def test_it_beats_a_ring_on_a_switch_and_loses_on_a_ring_of_links(size: int) -> None:
    for nbytes in (1.0, 1e3, 1e6, 1e9, 1e12):
        switch = star(size, 1e9, 10e-6)
        assert price(halving_doubling(size), nbytes, switch).seconds < price(ring(size), nbytes, switch).seconds
    links = torus([size], 1e9, 10e-6)
    assert price(halving_doubling(size), 1e9, links).seconds > 1.3 * price(ring(size), 1e9, links).seconds


def test_large_messages_to_near_partners_load_a_ring_of_links_less() -> None:
    links = torus([16], 1e9)
    assert price(near_first(16), 1e9, links).seconds < 0.5 * price(halving_doubling(16), 1e9, links).seconds
