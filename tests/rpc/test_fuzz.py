"""Nothing that a stranger sends changes a parameter or ends a server."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
import torch

from laconic.rpc import control
from laconic.rpc.authentication import MessageAuthenticator, make_key
from laconic.rpc.control import Beat, Hello, Welcome
from laconic.rpc.envelope import Answer, Envelope
from laconic.rpc.frames import Limits, Malformed, decode_answer, decode_envelope, encode
from laconic.rpc.inbox import Inbox
from laconic.rpc.service import Mailbox, Service
from laconic.worker import ActorMessage
from tests.rpc.shards import push, shard, values

MESSAGES = 100_000


def message_frames(number: int) -> list[bytes]:
    message = ActorMessage(push().kind, {**push().fields, "note": "x" * 20}, (*push().tensors,))
    return list(map(bytes, encode("s", Envelope(0, 0, number, True, number, 0, message))))


def corrupted(frames: Sequence[bytes], draw: random.Random) -> list[bytes]:
    """One to three changes of a message, any of which a broken or hostile sender might make."""
    made = list(frames)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(made)) if made else 0
        change = draw.randrange(8)
        if not made or change == 0:
            made.insert(at, draw.randbytes(draw.choice((0, 1, 40, 300))))
        elif change == 1:
            made.pop(at)
        elif change == 2:
            made[at] = made[at][: draw.randrange(len(made[at]) + 1)]
        elif change == 3:
            made[at] += draw.randbytes(draw.randint(1, 9))
        elif change == 4:
            made.append(made[at])
        elif change == 5:
            made[at] = draw.randbytes(len(made[at]))
        elif change == 6:
            draw.shuffle(made)
        if change in (2, 7) and made and made[at % len(made)]:
            frame = bytearray(made[at % len(made)])
            if frame:
                frame[draw.randrange(len(frame))] ^= 1 << draw.randrange(8)
            made[at % len(made)] = bytes(frame)
    return made


def opened(service: Service) -> Welcome:
    hello = Hello(control.VERSION, 0, 0, b"t" * 16, ["s"])
    ((welcome,), _) = service.control(b"me", [control.encode(hello)], 0.0)
    assert isinstance(welcome, Welcome)
    return welcome


def hostile(signed: Sequence[bytes], captured: Sequence[bytes], draw: random.Random) -> Iterator[list[bytes]]:
    """Messages made from one that is about to be sent and one that was received."""
    yield list(captured)  # replayed
    yield MessageAuthenticator.of_worker(signed[0][:16], make_key()).sign(signed[1:])  # another key
    while True:
        mixed = [draw.choice(pair) for pair in zip(signed, captured, strict=True)]
        changed = corrupted(mixed if draw.random() < 0.2 else signed, draw)
        if changed != list(signed):
            yield changed


@pytest.mark.long
def test_corrupted_messages_change_nothing() -> None:
    actor, draw = shard(), random.Random(1)
    service = Service(20.0, 1.0)
    service.mailboxes["s"] = Mailbox(Inbox(actor, is_saved=False), None)
    welcome = opened(service)
    authenticator = MessageAuthenticator.of_worker(welcome.session, welcome.key)
    captured: list[bytes] = []
    pushes, sent = 5, 0
    for number in range(1, pushes + 1):
        signed = list(map(bytes, authenticator.sign(message_frames(number))))
        before = values(actor)
        for frames in hostile(signed, captured or signed[::-1], draw):
            assert service.receive(b"x", frames, 0.0) == []
            sent += 1
            if sent == number * MESSAGES // pushes:
                break
        assert torch.equal(values(actor), before)
        received = [memoryview(bytearray(frame)) for frame in signed]
        (answer,) = service.receive(b"me", received, 0.0)  # the real one still counts
        assert answer[2].message is not None and answer[2].message.kind == "receipt"
        assert not torch.equal(values(actor), before)
        captured = signed
    assert sent == MESSAGES == service.refused.total()


def test_a_decoder_raises_malformed_and_nothing_else() -> None:
    """Whatever the bytes are, even if they are authenticated, the decoder returns a message or refuses them."""
    draw, refused = random.Random(2), 0
    answer = list(
        map(bytes, encode("s", Answer(0, 0, 1, False, 1, 1, 1, ActorMessage("values", {}, (torch.ones(9),)))))
    )
    for frames, decode in ((message_frames(1), decode_envelope), (answer, decode_answer)):
        for _ in range(5_000):
            changed = corrupted(frames, draw)
            if draw.random() < 0.5:  # more often where the header's structure is
                changed = [*corrupted(frames[:1], draw), *frames[1:]]
            try:
                decode([memoryview(bytearray(frame)) for frame in changed], Limits(nbytes=1 << 20))
            except Malformed:
                refused += 1
    assert refused > 5_000


def test_corrupted_control_messages_change_nothing() -> None:
    actor, service, draw = shard(), Service(20.0, 1.0), random.Random(3)
    service.mailboxes["s"] = Mailbox(Inbox(actor, is_saved=False), None)
    beat = Beat(opened(service).session)
    messages = [control.encode(beat), control.encode(Hello(control.VERSION, 5, 0, b"t" * 16, ["s"]))]
    for _ in range(5_000):
        service.control(b"x", corrupted([draw.choice(messages)], draw), 0.0)
    assert not values(actor).any() and service.refused.total() > 2_500
    assert service.control(b"me", [control.encode(beat)], 0.0) == ([beat], [])  # the session is what it was


@pytest.mark.parametrize("forged", [Envelope(1, 0, 1, True, 0, 0, push()), Envelope(0, 1, 1, True, 0, 0, push())])
def test_a_worker_sends_only_under_its_own_number(forged: Envelope) -> None:
    actor, service = shard(), Service(20.0, 1.0)
    service.mailboxes["s"] = Mailbox(Inbox(actor, is_saved=False), None)
    welcome = opened(service)
    signed = MessageAuthenticator.of_worker(welcome.session, welcome.key).sign(encode("s", forged))
    assert service.receive(b"x", signed, 0.0) == [] and service.refused["AuthenticationError"] == 1
    assert not values(actor).any()
