"""Messages as Flower's records: a header, and one array with the bytes of all tensors."""

from __future__ import annotations

from typing import Annotated

import msgspec
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from laconic.errors import LaconicError
from laconic.rpc.envelope import Envelope
from laconic.rpc.frames import Limits, decode_envelope, encode
from laconic.worker import ActorMessage

OURS = "laconic"
"""The record beside the arrays that says what they are."""


def to_records(message: ActorMessage) -> RecordDict:
    """Return a message as Flower's records: a header, and one array with the bytes of all its tensors."""
    header, *tensors = encode("", Envelope(0, 0, 1, True, 0, 0, message))
    lengths = msgspec.msgpack.encode([len(tensor) for tensor in tensors])
    data = b"".join(tensors)
    payload = ArrayRecord({"payload": Array(dtype="uint8", shape=(len(data),), stype="bytes", data=data)})
    return RecordDict({OURS: ConfigRecord({"header": bytes(header), "lengths": lengths}), "payload": payload})


def from_records(content: RecordDict) -> ActorMessage:
    """Return the message of some records, or raise where they are none of ours."""
    ours = content.config_records.get(OURS)
    payload = content.array_records.get("payload")
    if ours is None or payload is None or "payload" not in payload:
        raise LaconicError("a reply has no records of laconic: give the ClientApp the mod `compression`")
    header, lengths = ours.get("header"), ours.get("lengths")
    if not isinstance(header, bytes) or not isinstance(lengths, bytes):
        raise LaconicError("a reply has records of laconic that are damaged")
    data, frames, begin = memoryview(bytearray(payload["payload"].data)), [header], 0
    for length in _lengths(lengths):
        frames.append(data[begin : begin + length])  # type: ignore[arg-type]
        begin += length
    if begin != len(data):
        raise LaconicError(f"a reply has {len(data)} bytes of tensors, and says that they are {begin}")
    return decode_envelope(frames, Limits())[1].message


def _lengths(written: bytes) -> list[int]:
    try:
        return msgspec.msgpack.decode(written, type=list[Annotated[int, msgspec.Meta(ge=0)]])
    except msgspec.MsgspecError as error:
        raise LaconicError(f"a reply has lengths of tensors that cannot be decoded: {error}") from error


def payload_bytes(content: RecordDict) -> int:
    """Return the bytes of a message that are a compressor's, or the model's."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())
