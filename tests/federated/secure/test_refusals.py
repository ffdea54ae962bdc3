"""Messages that are malformed, replayed, oversized, changed or out of order change nothing, and a session goes on."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.errors import LaconicError
from laconic.federated.secure.client import SEALED_BYTES, Client
from laconic.federated.secure.messages import HEADER_BYTES, Kind, write, write_set
from laconic.federated.secure.refusals import Refused
from laconic.federated.secure.session import PHASES
from laconic.federated.secure.terms import Terms
from tests.federated.secure.sessions import Manual, seeded


def spoilt(message: bytes, draw: np.random.Generator) -> list[bytes]:
    """Return a message cut, lengthened, emptied, of another kind and session, and from nobody."""
    return [
        b"",
        message[: HEADER_BYTES - 1],
        message[:-1],
        message + b"\0",
        message + bytes(10**7),
        bytes([message[0] + 1]) + message[1:],
        bytes([message[0] + 8]) + message[1:],
        message[:1] + draw.bytes(16) + message[17:],
        message[:17] + (99).to_bytes(4, "little") + message[21:],
        message[:17] + (2**32 - 1).to_bytes(4, "little") + message[21:],
    ]


@pytest.mark.parametrize("phase", PHASES)
def test_a_server_refuses_what_is_no_message_of_the_phase_and_goes_on(phase: Kind) -> None:
    session = Manual()
    sent = session.until(phase)
    for number in range(4):
        message = session.answer(number, sent)
        for wrong in spoilt(message, np.random.default_rng(number)):
            with pytest.raises(Refused):
                session.server.receive(wrong)
        with pytest.raises(Refused):
            session.server.receive(None)  # type: ignore[arg-type]
        session.server.receive(message)
        with pytest.raises(Refused, match="counts once"):
            session.server.receive(message)
    session.finish(session.server.close())


@pytest.mark.parametrize("phase", PHASES)
def test_a_message_of_an_earlier_session_is_refused(phase: Kind) -> None:
    """The terms are equal but for the session's id, and so are the clients' secrets."""
    earlier, session = Manual(seed=1), Manual(seed=1)
    old, sent = earlier.until(phase), session.until(phase)
    with pytest.raises(Refused, match="another session"):
        session.server.receive(earlier.answer(0, old))
    if phase != Kind.KEYS:
        with pytest.raises(Refused, match="another session"):
            session.answer(0, old)
    session.finish(sent)


def test_messages_of_one_phase_are_not_taken_in_another() -> None:
    session = Manual()
    keys = [client.advertise() for client in session.clients]
    for message in keys:
        session.server.receive(message)
    sent = session.server.close()
    with pytest.raises(Refused, match="kind 1 came where one of shares"):
        session.server.receive(keys[0])
    session.finish(sent)


@pytest.mark.parametrize("phase", PHASES[1:])
def test_clients_refuse_what_is_not_for_them(phase: Kind) -> None:
    session = Manual()
    sent = session.until(phase)
    for wrong in (*spoilt(sent[0], np.random.default_rng(0)), sent[1]):
        with pytest.raises(Refused):
            session.answer(0, {0: wrong})
    session.finish(sent)


def test_each_step_of_a_client_is_done_once_and_in_order() -> None:
    session = Manual()
    roster = session.until(Kind.SHARES)
    with pytest.raises(Refused, match="once and in order"):
        session.clients[0].advertise()
    with pytest.raises(Refused, match="once and in order"):
        session.clients[0].reveal(b"")
    relayed = session.until(Kind.MASKED, roster)
    with pytest.raises(Refused, match="once and in order"):
        session.clients[0].share(roster[0])
    survivors = session.until(Kind.REVEALED, relayed)
    with pytest.raises(Refused, match="once and in order"):
        session.clients[0].mask(relayed[0], session.vectors[0])
    session.clients[0].reveal(survivors[0])
    with pytest.raises(Refused, match="once and in order"):
        session.clients[0].reveal(survivors[0])


def test_a_client_never_reveals_both_secrets_of_another() -> None:
    """A server that asks for client 3's seed first, as if it had survived, does not get its key afterwards."""
    session = Manual()
    session.until(Kind.REVEALED)
    alive = write(Kind.SURVIVORS, session.terms, 0, write_set([0, 1, 2, 3], 4))
    gone = write(Kind.SURVIVORS, session.terms, 0, write_set([0, 1, 2], 4))
    first = session.clients[0].reveal(alive)
    with pytest.raises(Refused):
        session.clients[0].reveal(gone)
    other = Manual()
    other.until(Kind.REVEALED)
    second = other.clients[0].reveal(write(Kind.SURVIVORS, other.terms, 0, write_set([0, 1, 2], 4)))
    assert len(first) == len(second) and first[-32:] != second[-32:], (
        "one share of client 3: of the seed, or of the key"
    )
    assert first[HEADER_BYTES:-32] == second[HEADER_BYTES:-32]


def test_a_roster_with_a_key_twice_or_without_ones_own_is_refused() -> None:
    session = Manual()
    roster = session.until(Kind.SHARES)[0]
    keys = roster[HEADER_BYTES + 1 :]
    twice = roster[: HEADER_BYTES + 1] + keys[:64] + keys[:64] + keys[128:]
    swapped = roster[: HEADER_BYTES + 1] + keys[64:128] + keys[:64] + keys[128:]
    beyond = roster[:HEADER_BYTES] + bytes([roster[HEADER_BYTES] | 0x80]) + keys
    left_out = write(Kind.ROSTER, session.terms, 0, write_set([1, 2, 3], 4) + keys[64:])
    small_order = roster[: HEADER_BYTES + 1] + keys[:64] + bytes(32) + keys[96:]
    for wrong, why in [
        (twice, "twice"),
        (swapped, "own keys"),
        (beyond, "not invited"),
        (left_out, "own keys"),
        (small_order, "public key is none"),
    ]:
        with pytest.raises(Refused, match=why):
            session.clients[0].share(wrong)
    session.finish({number: write(Kind.ROSTER, session.terms, number, roster[HEADER_BYTES:]) for number in range(4)})


def test_shares_that_were_changed_on_their_way_are_noticed() -> None:
    session = Manual()
    sent = session.until(Kind.MASKED)
    place = HEADER_BYTES + 1 + SEALED_BYTES + 5  # in what client 2 has sent to client 0
    sent[0] = sent[0][:place] + bytes([sent[0][place] ^ 1]) + sent[0][place + 1 :]
    for number in range(4):
        session.server.receive(session.answer(number, sent))
    survivors = session.server.close()
    with pytest.raises(Refused, match="client 2 were changed"):
        session.answer(0, survivors)
    for number in (1, 2, 3):
        session.server.receive(session.answer(number, survivors))
    session.server.close()
    assert np.array_equal(session.server.total, session.vectors.sum(0) % 2**20), "three are enough"


def test_shares_of_strangers_and_lists_without_the_client_are_refused() -> None:
    session = Manual()
    sent = session.until(Kind.MASKED)
    sealed = sent[0][HEADER_BYTES + 1 :]
    without = write(Kind.RELAYED, session.terms, 0, write_set([1, 2, 3], 4) + sealed)
    with pytest.raises(Refused, match="left out"):
        session.clients[0].mask(without, session.vectors[0])
    survivors = session.until(Kind.REVEALED, sent)
    for members in ([1, 2, 3],):
        with pytest.raises(Refused, match="leaves this client out"):
            session.clients[0].reveal(write(Kind.SURVIVORS, session.terms, 0, write_set(members, 4)))
    session.finish(survivors)


def test_wrong_shares_of_a_vanished_clients_key_are_noticed() -> None:
    session = Manual()
    sent = session.until(Kind.MASKED)
    for number in range(3):
        session.server.receive(session.answer(number, sent))
    survivors = session.server.close()
    for number in range(3):
        message = session.answer(number, survivors)
        session.server.receive(message[:-1] + b"\0" if number == 1 else message)
    with pytest.raises(Refused, match="do not give client 3's key"):
        session.server.close()
    with pytest.raises(LaconicError, match="no sum"):
        _ = session.server.total


def test_a_share_beyond_the_field_is_refused() -> None:
    session = Manual()
    survivors = session.until(Kind.REVEALED)
    message = session.answer(0, survivors)
    with pytest.raises(Refused, match="no element"):
        session.server.receive(message[:-32] + b"\xff" * 32)
    session.server.receive(message)


def test_a_client_that_missed_a_phase_is_not_taken_back() -> None:
    session = Manual()
    sent = session.until(Kind.SHARES)
    shares = [session.answer(number, sent) for number in range(4)]
    for number in range(3):
        session.server.receive(shares[number])
    sent = session.server.close()
    assert set(sent) == {0, 1, 2}
    forged = write(Kind.MASKED, session.terms, 3, bytes(13))
    with pytest.raises(Refused, match="missed an earlier phase"):
        session.server.receive(forged)
    session.finish(sent)


def test_a_server_that_was_killed_starts_a_new_session_and_nobody_counts_twice() -> None:
    """It is gone between receiving the vectors and unmasking: the repeated session has other keys and masks."""
    first = Manual(seed=3)
    sent = first.until(Kind.MASKED)
    masked = [first.answer(number, sent) for number in range(4)]
    for message in masked:
        first.server.receive(message)
    again = Manual(seed=3)  # a new id; even with the clients' old secrets the masks are new ones
    sent = again.until(Kind.MASKED)
    for message in masked:
        with pytest.raises(Refused, match="another session"):
            again.server.receive(message)
    fresh = [again.answer(number, sent) for number in range(4)]
    assert not {m[HEADER_BYTES:] for m in fresh} & {m[HEADER_BYTES:] for m in masked}
    for message in fresh:
        again.server.receive(message)
    again.finish(again.server.close())


def test_vectors_of_other_lengths_and_fractions_are_refused_before_they_are_masked() -> None:
    session = Manual()
    sent = session.until(Kind.MASKED)
    for wrong in (np.zeros(4, dtype=int), np.zeros(5), np.zeros((5, 1), dtype=int)):
        with pytest.raises(LaconicError, match="5 whole numbers"):
            session.clients[0].mask(sent[0], wrong)  # type: ignore[arg-type]
    session.finish(sent)


def test_a_client_that_was_not_invited_cannot_be_made() -> None:
    with pytest.raises(LaconicError, match="not invited"):
        Client(Terms(3, 2, 1, 8), 3, seeded(0))


def test_an_ended_session_takes_nothing_more() -> None:
    session = Manual()
    session.finish({})
    with pytest.raises(Refused, match="over"):
        session.server.receive(b"")
    with pytest.raises(Refused, match="over"):
        session.server.close()
