"""The sum of those that are left, whoever vanishes when; none below the threshold; nothing in a single vector."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from laconic.errors import LaconicError
from laconic.federated.secure.client import add_pairwise, self_mask
from laconic.federated.secure.keys import PRIME, KeyPair
from laconic.federated.secure.masks import expanded, packed, packed_bytes, reduced, signed, unpacked
from laconic.federated.secure.messages import HEADER_BYTES, Kind
from laconic.federated.secure.refusals import TooFewClients
from laconic.federated.secure.session import PHASES
from laconic.federated.secure.shares import SHARE_BYTES, join, split, weights_at_zero
from laconic.federated.secure.terms import Terms, sum_bits
from tests.federated.secure.sessions import Manual, check, seeded

ANY_TIME = (*PHASES, None)


def drawn(clients: int, numel: int, seed: int) -> np.ndarray:
    """Vectors of 16 bits, with the largest and the smallest among them."""
    vectors = np.random.default_rng(seed).integers(0, 2**16, (clients, numel))
    vectors[:, 0], vectors[:, -1] = 2**16 - 1, 0
    return vectors


@pytest.mark.technique("secagg", check=1)
@pytest.mark.parametrize("threshold", [2, 3])
def test_every_pattern_of_three_clients_gives_the_exact_sum_or_ends(threshold: int) -> None:
    for seed, pattern in enumerate(product(ANY_TIME, repeat=3)):
        vanishing = {client: phase for client, phase in enumerate(pattern) if phase is not None}
        check(Terms(3, threshold, 4, sum_bits(3, 2**16)), drawn(3, 4, seed), vanishing, seed)


@pytest.mark.long
@pytest.mark.technique("secagg", check=1)
def test_every_pattern_of_four_clients_gives_the_exact_sum_or_ends() -> None:
    for seed, pattern in enumerate(product(ANY_TIME, repeat=4)):
        vanishing = {client: phase for client, phase in enumerate(pattern) if phase is not None}
        check(Terms(4, 2 + seed % 3, 3, sum_bits(4, 2**16)), drawn(4, 3, seed), vanishing, seed)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_terms_give_the_exact_sum_or_end(data: st.DataObject) -> None:
    clients = data.draw(st.integers(2, 9))
    threshold = data.draw(st.integers(2, clients))
    bits = data.draw(st.sampled_from([1, 7, 17, 19, 31, 32]))
    numel = data.draw(st.sampled_from([1, 3, 8, 100]))
    pattern = data.draw(st.lists(st.sampled_from([None, None, None, *PHASES]), min_size=clients, max_size=clients))
    vanishing = {client: phase for client, phase in enumerate(pattern) if phase is not None}
    check(Terms(clients, threshold, numel, bits), drawn(clients, numel, numel), vanishing, clients)


@pytest.mark.long
@pytest.mark.technique("secagg", check=1)
def test_ten_thousand_random_patterns() -> None:
    """Of two to five clients; most vanish seldom, so that about half of the sessions come to their end."""
    draw, complete = np.random.default_rng(26), 0
    for seed in range(10_000):
        clients = int(draw.integers(2, 6))
        threshold = int(draw.integers(2, clients + 1))
        phases = draw.choice(len(ANY_TIME), size=clients, p=[0.05, 0.05, 0.1, 0.1, 0.7])
        vanishing = {c: found for c, place in enumerate(phases) if (found := ANY_TIME[place]) is not None}
        vectors = drawn(clients, 3, seed)
        complete += (
            check(Terms(clients, threshold, 3, sum_bits(clients, 2**16)), vectors, vanishing, seed).total is not None
        )
    assert 3_000 < complete < 8_000, "both ends were seen often"


@pytest.mark.technique("secagg", check=2)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("clients", [2, 5])
def test_a_masked_vector_looks_random_and_does_not_depend_on_the_input(clients: int, seed: int) -> None:
    """Inputs that are as far from random as can be: all zero, all one number, a ramp. Every masked vector passes a test
    of uniform bytes, of serial pairs, and has no correlation with its input."""
    numel, bits = 40_000, 24
    session = Manual(clients, 2, numel, bits, seed)
    session.vectors = np.stack([np.zeros(numel), np.full(numel, 65_535), *[np.arange(numel)] * 3])[:clients].astype(int)
    sent = session.until(Kind.MASKED)
    for number in range(clients):
        body = session.answer(number, sent)[HEADER_BYTES:]
        masked = unpacked(body, bits, numel)
        counts = np.bincount(masked >> 16, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4
        pairs = np.bincount((masked[::2] & 15) * 16 + (masked[1::2] & 15), minlength=256)
        assert stats.chisquare(pairs).pvalue > 1e-4
        plain = np.arange(numel)
        assert abs(np.corrcoef(masked, plain)[0, 1]) < 5 / numel**0.5
        assert len(np.unique(masked)) > 0.98 * numel


@pytest.mark.parametrize("seed", [0, 1])
def test_a_vector_that_arrives_after_its_masks_were_taken_off_is_still_masked(seed: int) -> None:
    """Client 3 is late: the others have revealed its pairwise key, and the server takes those masks off its vector. The
    mask of its own seed is left, which nobody has revealed."""
    numel, bits = 40_000, 24
    session = Manual(4, 3, numel, bits, seed)
    sent = session.until(Kind.MASKED)
    late = unpacked(session.answer(3, sent)[HEADER_BYTES:], bits, numel)
    for number in range(3):
        session.server.receive(session.answer(number, sent))
    survivors = session.server.close()
    revealed = [session.answer(number, survivors)[-SHARE_BYTES:] for number in range(3)]
    shares = {number: int.from_bytes(share, "little") for number, share in enumerate(revealed)}
    pair = KeyPair(join(shares, weights_at_zero(range(3))))
    assert pair.public == session.clients[3]._pairwise.public, "the server knows the key now"
    for other in range(3):
        taken_off = np.zeros(numel, dtype=np.uint32)
        add_pairwise(session.terms, taken_off, 3, other, pair.agree(session.clients[other]._pairwise.public))
        late = late - taken_off
    assert stats.chisquare(np.bincount(reduced(late, bits) >> 16, minlength=256)).pvalue > 1e-4
    assert abs(np.corrcoef(reduced(late, bits), session.vectors[3])[0, 1]) < 5 / numel**0.5
    own = self_mask(session.terms, session.clients[3]._own)
    assert np.array_equal(reduced(late - own, bits), session.vectors[3]), "and nothing else is left"


def test_two_clients_with_one_vector_send_different_ones() -> None:
    session = Manual(3, 2, 50, 20)
    session.vectors = np.zeros((3, 50), dtype=int)
    sent = session.until(Kind.MASKED)
    bodies = {session.answer(number, sent)[HEADER_BYTES:] for number in range(3)}
    assert len(bodies) == 3


@pytest.mark.parametrize("threshold", [2, 5, 8])
def test_shares_give_the_secret_at_the_threshold_and_not_below_it(threshold: int) -> None:
    draw = np.random.default_rng(threshold)
    for secret in (0, 1, PRIME - 1, int.from_bytes(draw.bytes(31), "little")):
        shares = split(secret, threshold, range(9), seeded(threshold))
        for _ in range(5):
            holders = draw.choice(9, size=threshold, replace=False).tolist()
            assert join(shares, weights_at_zero(holders)) == secret
            assert join(shares, weights_at_zero(holders[1:])) != secret


@pytest.mark.parametrize("threshold", [2, 4])
def test_fewer_shares_are_spread_over_the_field_whatever_the_secret(threshold: int) -> None:
    """What one less than the threshold would give, and the last of these shares, are uniform over many sharings."""
    holders = list(range(2, threshold + 1))
    weights = weights_at_zero(holders)
    for secret in (0, PRIME // 3):
        sharings = [split(secret, threshold, holders, seeded(seed)) for seed in range(3000)]
        for found in ([join(shares, weights) for shares in sharings], [shares[holders[-1]] for shares in sharings]):
            counts = np.bincount([number >> 249 for number in found], minlength=64)
            assert stats.chisquare(counts).pvalue > 1e-4


def test_shares_of_one_secret_differ_from_session_to_session() -> None:
    assert split(5, 3, range(4), seeded(0)) != split(5, 3, range(4), seeded(1))


def test_below_the_threshold_the_server_keeps_nothing_and_says_so() -> None:
    session = Manual(5, 4)
    sent = session.until(Kind.REVEALED)
    for number in range(3):
        session.server.receive(session.answer(number, sent))
    with pytest.raises(TooFewClients, match=r"3 of 5 clients have revealed shares, and 4 are\s+needed"):
        session.server.close()
    with pytest.raises(LaconicError, match="no sum"):
        _ = session.server.total
    assert session.server._masked is None and not any(session.server._came.values())


def test_clients_refuse_a_server_that_goes_on_below_the_threshold() -> None:
    """A roster, shares and survivors of fewer clients than were agreed on are answered by none."""
    for phase in (Kind.SHARES, Kind.MASKED, Kind.REVEALED):
        session = Manual(4, 3)
        careless = Manual(4, 2)
        careless.terms = careless.server.terms = Terms(4, 2, 5, 20, session.terms.session)
        sent: dict[int, bytes] = {}
        careless.clients = session.clients
        while careless.server.phase != phase:
            last = {Kind.SHARES: Kind.KEYS, Kind.MASKED: Kind.SHARES, Kind.REVEALED: Kind.MASKED}[phase]
            for number in range(2 if careless.server.phase == last else 4):
                careless.server.receive(careless.answer(number, sent))
            sent = careless.server.close()
        with pytest.raises(TooFewClients, match=r"2 clients have .* reveals nothing more"):
            careless.answer(0, sent)


@pytest.mark.parametrize("bits", [1, 9, 26, 32])
def test_numbers_are_packed_without_gaps(bits: int) -> None:
    for numel in (1, 7, 8, 5000):
        numbers = expanded(bytes(32), numel) & np.uint32(2**bits - 1)
        written = packed(numbers, bits)
        assert len(written) == packed_bytes(numel, bits) == -(-numel * bits // 8)
        assert np.array_equal(unpacked(written, bits, numel), numbers)


def test_negative_numbers_come_back_from_the_ring() -> None:
    numbers = np.array([-(2**17), -1, 0, 1, 2**17 - 1])
    assert np.array_equal(signed((numbers % 2**18).astype(np.uint32), 18), numbers)


@pytest.mark.parametrize(("clients", "bits"), [(1, 16), (2, 17), (3, 18), (64, 22), (1024, 26)])
def test_bits_hold_every_sum_and_one_less_does_not(clients: int, bits: int) -> None:
    assert sum_bits(clients, 2**16) == bits
    assert 2 ** (bits - 1) <= clients * (2**16 - 1) < 2**bits


def test_terms_that_make_no_sense_are_refused() -> None:
    for wrong in ((5, 1, 3, 8), (5, 6, 3, 8), (5, 3, 0, 8), (5, 3, 3, 33), (5, 3, 3, 0)):
        with pytest.raises(LaconicError):
            Terms(*wrong)
    with pytest.raises(LaconicError, match="id of 16"):
        Terms(5, 3, 3, 8, b"short")
