"""Letters as frames, and what the decoder refuses."""

from __future__ import annotations

import msgspec
import pytest
import torch

from laconic.errors import LaconicError
from laconic.rpc.authentication import Forged, MessageSeal, make_key
from laconic.rpc.envelope import Answer, Envelope
from laconic.rpc.frames import (
    DTYPES,
    HEADER_LIMIT_BYTES,
    SEAL_BYTES,
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
def test_every_dtype_travels_bit_by_bit(name: str) -> None:
    raw = torch.arange(64, dtype=torch.uint8)
    tensor = (raw % 2).view(torch.bool) if name == "bool" else raw.view(DTYPES[name])
    _, said = decode_envelope(encode("a", envelope(ActorMessage("push", {}, (tensor,)))), LIMITS)
    (heard,) = said.message.tensors
    assert heard.dtype == tensor.dtype and heard.shape == tensor.shape
    assert torch.equal(heard.view(torch.uint8), tensor.view(torch.uint8))


def test_shapes_fields_and_numbers_come_back() -> None:
    tensors = (torch.randn(2, 3), torch.tensor(1.5), torch.empty(0, 4), torch.randn(4, 6)[:, ::2], torch.randn(3, 2).T)
    fields = {"i": -1, "f": 0.1, "s": "ä", "b": True, "n": None, "is": [1, 2], "fs": [1.0, 2.5], "ss": ["x"]}
    address, said = decode_envelope(encode("p/0", envelope(ActorMessage("push", fields, tensors))), LIMITS)
    assert address == "p/0"
    assert (said.sender, said.life, said.number, said.writes, said.after, said.confirmed) == (1, 0, 3, True, 3, 2)
    assert said.message.kind == "push" and said.message.fields == fields
    assert [type(v) for v in said.message.fields.values()] == [type(v) for v in fields.values()]
    assert all(torch.equal(x, y) for x, y in zip(said.message.tensors, tensors, strict=True))


@pytest.mark.parametrize("message", [None, ActorMessage("values", {"version": 7}, (torch.ones(3),))])
def test_answers_come_back_with_and_without_a_letter(message: ActorMessage | None) -> None:
    address, said = decode_answer(encode("p/1", Answer(1, 2, 3, False, 4, 5, 6, message)), LIMITS)
    numbers = (said.to, said.life, said.number, said.writes, said.epoch, said.received, said.durable)
    assert address == "p/1" and numbers == (1, 2, 3, False, 4, 5, 6)
    assert (said.message is None) == (message is None)


def test_nothing_is_copied_on_the_way() -> None:
    tensor = torch.zeros(100_000)
    frames = encode("a", envelope(ActorMessage("push", {}, (tensor,))))
    tensor[0] = 1.0
    _, said = decode_envelope(frames, LIMITS)
    assert said.message.tensors[0].data_ptr() == tensor.data_ptr() and said.message.tensors[0][0] == 1.0


def test_bytes_on_the_wire_are_known_before_they_are_sent() -> None:
    tensors = (torch.ones(3), torch.ones(1000, dtype=torch.float16))
    for said in (envelope(ActorMessage("push", {"a": 1}, tensors)), Answer(1, 0, 300, True, 1, 1, 1, None)):
        frames = MessageSeal.of_worker(bytes(16), make_key()).close(encode("a", said))
        framing = sum(2 if len(frame) < 256 else 9 for frame in frames)
        payload = sum(map(len, frames[2:]))
        assert wire_bytes("a", said) == (payload, sum(map(len, frames)) + framing - payload)
        assert len(frames[0]) == SEAL_BYTES


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
def test_what_is_no_letter_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(Malformed):
        decode_envelope(frames, LIMITS)


def test_limits_are_kept() -> None:
    frames = encode("a", envelope(ActorMessage("push", {}, (torch.ones(2), torch.ones(2)))))
    for limits in (Limits(tensors=1), Limits(nbytes=15), Limits(dimensions=0)):
        with pytest.raises(Malformed):
            decode_envelope(frames, limits)
    decode_envelope(frames, Limits(2, 16, 1))


def test_what_cannot_travel_is_refused_where_it_starts() -> None:
    with pytest.raises(LaconicError, match="cannot travel"):
        encode("a", envelope(ActorMessage("push", {}, (torch.eye(2).to_sparse(),))))
    with pytest.raises(LaconicError, match="put what is long into a tensor"):
        encode("a", envelope(ActorMessage("push", {"a": "x" * HEADER_LIMIT_BYTES})))


def test_seals_hold_in_one_direction_once_and_in_order() -> None:
    key = make_key()
    worker, server = MessageSeal.of_worker(bytes(16), key), MessageSeal.of_server(bytes(16), key)
    first, second = (worker.close([b"header", bytes_of(torch.arange(3))]) for _ in range(2))
    with pytest.raises(Forged):
        worker.open(first)  # a reflection
    assert bytes(server.open(second)[0]) == b"header"
    for again in (second, first):  # a repetition, and one that comes too late
        with pytest.raises(Forged):
            server.open(again)
    third = worker.close([b"header", b"tensor"])
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
            server.open(changed)
    server.open(third)
    with pytest.raises(Forged):
        server.open(MessageSeal.of_worker(bytes(16), make_key()).close([b"header"]))
