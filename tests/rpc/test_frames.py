"""Messages as frames, and what the decoder refuses."""

from __future__ import annotations

import msgspec
import pytest
import torch

from laconic.errors import LaconicError
from laconic.rpc.authentication import AuthenticationError, MessageAuthenticator, make_key
from laconic.rpc.envelope import Answer, Envelope
from laconic.rpc.frames import (
    AUTHENTICATION_BYTES,
    DTYPES,
    HEADER_LIMIT_BYTES,
    Limits,
    Malformed,
    bytes_of,
    decode_answer,
    decode_envelope,
    encode,
    wire_bytes,
)
from laconic.worker import ActorMessage

LIMITS = Limits()


def envelope(message: ActorMessage, number: int = 3) -> Envelope:
    return Envelope(1, 0, number, True, 3, 2, message)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_transferred_bit_by_bit(name: str) -> None:
    raw = torch.arange(64, dtype=torch.uint8)
    tensor = (raw % 2).view(torch.bool) if name == "bool" else raw.view(DTYPES[name])
    _, decoded = decode_envelope(encode("a", envelope(ActorMessage("push", {}, (tensor,)))), LIMITS)
    (received,) = decoded.message.tensors
    assert received.dtype == tensor.dtype and received.shape == tensor.shape
    assert torch.equal(received.view(torch.uint8), tensor.view(torch.uint8))


def test_shapes_fields_and_numbers_survive_encoding() -> None:
    tensors = (torch.randn(2, 3), torch.tensor(1.5), torch.empty(0, 4), torch.randn(4, 6)[:, ::2], torch.randn(3, 2).T)
    fields = {"i": -1, "f": 0.1, "s": "ä", "b": True, "n": None, "is": [1, 2], "fs": [1.0, 2.5], "ss": ["x"]}
    address, decoded = decode_envelope(encode("p/0", envelope(ActorMessage("push", fields, tensors))), LIMITS)
    assert address == "p/0"
    assert (decoded.sender, decoded.life, decoded.number, decoded.writes, decoded.after, decoded.confirmed) == (
        1,
        0,
        3,
        True,
        3,
        2,
    )
    assert decoded.message.kind == "push" and decoded.message.fields == fields
    assert [type(v) for v in decoded.message.fields.values()] == [type(v) for v in fields.values()]
    assert all(torch.equal(x, y) for x, y in zip(decoded.message.tensors, tensors, strict=True))


@pytest.mark.parametrize("message", [None, ActorMessage("values", {"version": 7}, (torch.ones(3),))])
def test_answers_survive_encoding_with_and_without_a_message(message: ActorMessage | None) -> None:
    address, decoded = decode_answer(encode("p/1", Answer(1, 2, 3, False, 4, 5, 6, message)), LIMITS)
    numbers = (
        decoded.to,
        decoded.life,
        decoded.number,
        decoded.writes,
        decoded.epoch,
        decoded.received,
        decoded.durable,
    )
    assert address == "p/1" and numbers == (1, 2, 3, False, 4, 5, 6)
    assert (decoded.message is None) == (message is None)


def test_encoding_and_decoding_copy_nothing() -> None:
    tensor = torch.zeros(100_000)
    frames = encode("a", envelope(ActorMessage("push", {}, (tensor,))))
    tensor[0] = 1.0
    _, decoded = decode_envelope(frames, LIMITS)
    assert decoded.message.tensors[0].data_ptr() == tensor.data_ptr() and decoded.message.tensors[0][0] == 1.0


def test_bytes_on_the_wire_are_known_before_they_are_sent() -> None:
    tensors = (torch.ones(3), torch.ones(1000, dtype=torch.float16))
    for sent in (envelope(ActorMessage("push", {"a": 1}, tensors)), Answer(1, 0, 300, True, 1, 1, 1, None)):
        frames = MessageAuthenticator.of_worker(bytes(16), make_key()).sign(encode("a", sent))
        framing = sum(2 if len(frame) < 256 else 9 for frame in frames)
        payload = sum(map(len, frames[2:]))
        assert wire_bytes("a", sent) == (payload, sum(map(len, frames)) + framing - payload)
        assert len(frames[0]) == AUTHENTICATION_BYTES


def header(**changes: object) -> bytes:
    parts = {"version": 1, "address": "a", "sender": 1, "life": 0, "number": 1, "writes": True, "after": 1}
    parts |= {"confirmed": 0, "kind": "push", "fields": {}, "tensors": [["float32", [2]]]}
    assert changes.keys() <= parts.keys()
    return msgspec.msgpack.encode([*{**parts, **changes}.values()])


EIGHT = bytes(8)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xc1"],
        [header()],
        [header(), EIGHT, EIGHT],
        [header(), bytes(7)],
        [header(version=2), EIGHT],
        [header(tensors=[["float32", [-2]]]), EIGHT],
        [header(tensors=[["float32", [-1, -2]]]), EIGHT],
        [header(tensors=[["float32", [1 << 62, 4]]]), EIGHT],
        [header(tensors=[["float32", [1] * 65 + [2]]]), EIGHT],
        [header(tensors=[["float33", [2]]]), EIGHT],
        [header(tensors=[["__class__", [2]]]), EIGHT],
        [header(tensors=[["float32", [2.0]]]), EIGHT],
        [header(life=-1), EIGHT],
        [header(number=0), EIGHT],
        [header(after=-1), EIGHT],
        [header(confirmed=-1), EIGHT],
        [header(writes=1), EIGHT],
        [header(fields={"a": b"raw"}), EIGHT],
        [header(fields={"a": {"deep": 1}}), EIGHT],
        [header(fields={"a": [[1]]}), EIGHT],
        [header(fields={1: 1}), EIGHT],
        [header(kind=None), EIGHT],
        [header() + b"\x00", EIGHT],
        [header()[:-1], EIGHT],
        [header(kind="x" * HEADER_LIMIT_BYTES), EIGHT],
        [b"\x91" * 100_000, EIGHT],
    ],
)
def test_what_is_no_message_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(Malformed):
        decode_envelope(frames, LIMITS)


def test_limits_are_kept() -> None:
    frames = encode("a", envelope(ActorMessage("push", {}, (torch.ones(2), torch.ones(2)))))
    for limits in (Limits(tensors=1), Limits(nbytes=15), Limits(dimensions=0)):
        with pytest.raises(Malformed):
            decode_envelope(frames, limits)
    decode_envelope(frames, Limits(2, 16, 1))


def test_what_cannot_be_sent_is_refused_by_the_encoder() -> None:
    with pytest.raises(LaconicError, match="cannot be sent"):
        encode("a", envelope(ActorMessage("push", {}, (torch.eye(2).to_sparse(),))))
    with pytest.raises(LaconicError, match="put what is long into a tensor"):
        encode("a", envelope(ActorMessage("push", {"a": "x" * HEADER_LIMIT_BYTES})))


def test_authentication_holds_in_one_direction_once_and_in_order() -> None:
    key = make_key()
    worker, server = MessageAuthenticator.of_worker(bytes(16), key), MessageAuthenticator.of_server(bytes(16), key)
    first, second = (worker.sign([b"header", bytes_of(torch.arange(3))]) for _ in range(2))
    with pytest.raises(AuthenticationError):
        worker.verify(first)  # a reflection
    assert bytes(server.verify(second)[0]) == b"header"
    for again in (second, first):  # a repetition, and one that arrives too late
        with pytest.raises(AuthenticationError):
            server.verify(again)
    third = worker.sign([b"header", b"tensor"])
    for changed in (
        [third[0], b"headex", b"tensor"],
        [third[0], b"header", b"tensoR"],
        [third[0], b"headert", b"ensor"],
        [third[0], b"header"],
        [third[0], b"header", b"tensor", b""],
        [third[0], b"tensor", b"header"],
        [bytes(third[0])[:-1] + b"\0", b"header", b"tensor"],
    ):
        with pytest.raises(Malformed):
            server.verify(changed)
    server.verify(third)
    with pytest.raises(AuthenticationError):
        server.verify(MessageAuthenticator.of_worker(bytes(16), make_key()).sign([b"header"]))
