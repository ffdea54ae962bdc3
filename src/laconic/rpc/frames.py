"""Messages as frames: one typed header, then each tensor's bytes as they lie in memory.

Nothing is ever unpickled. What is received is checked before it is used: the decoder either returns a message or raises
`Malformed`, and the receiver counts that and goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec
import torch
from torch import Tensor

from laconic.errors import LaconicError
from laconic.rpc.envelope import Answer, Envelope
from laconic.worker import ActorMessage, Field

VERSION = 1
HEADER_LIMIT_BYTES = 1 << 20
AUTHENTICATION_BYTES = 40
"""Length of the frame before the header that authenticates a message (`authentication.py`)."""

_NAMES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu "
    "float4_e2m1fn_x2 complex64 complex128 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
)
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name)}
NAME_OF = {dtype: name for name, dtype in DTYPES.items()}

HeaderT = TypeVar("HeaderT", bound=msgspec.Struct)
Buffer = bytes | memoryview


class Malformed(LaconicError, ValueError):
    """What was received is no valid message of this run: it is dropped and counted."""


@dataclass(frozen=True)
class Limits:
    """The most that one message may hold, whoever sent it."""

    tensors: int = 1 << 16
    nbytes: int = 1 << 36
    dimensions: int = 64


class _Shape(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    dtype: str
    sizes: list[int]


_Fields = dict[str, int | float | str | bool | list[int | float | str] | None]


class _EnvelopeHeader(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """An `Envelope` without its tensors' bytes."""

    version: int
    address: str
    sender: int
    life: int
    number: int
    writes: bool
    after: int
    confirmed: int
    kind: str
    fields: _Fields
    tensors: list[_Shape]


class _AnswerHeader(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """An `Answer` without its tensors' bytes; `kind` is None where it has no message."""

    version: int
    address: str
    to: int
    life: int
    number: int
    writes: bool
    epoch: int
    received: int
    durable: int
    kind: str | None
    fields: _Fields
    tensors: list[_Shape]


_encoder = msgspec.msgpack.Encoder()
_envelope_decoder = msgspec.msgpack.Decoder(_EnvelopeHeader)
_answer_decoder = msgspec.msgpack.Decoder(_AnswerHeader)


# ---------------------------------------------------------------------------------------------- to frames


def encode(address: str, envelope: Envelope | Answer) -> list[Buffer]:
    """Return the header and a view of each tensor's memory."""
    tensors = () if envelope.message is None else envelope.message.tensors
    return [_header(address, envelope, tensors), *(bytes_of(_plain(x)) for x in tensors)]


def wire_bytes(address: str, envelope: Envelope | Answer) -> tuple[int, int]:
    """Return exactly what this message will take on the wire: the bytes of its tensors, and all others."""
    tensors = () if envelope.message is None else envelope.message.tensors
    return bytes_in([len(_header(address, envelope, tensors)), *(x.nbytes for x in tensors)])


def bytes_in(lengths: Sequence[int]) -> tuple[int, int]:
    """Return what a header and tensors of these lengths take on the wire: the bytes of the tensors, and all others.

    ZeroMQ puts a flag before each frame, and a length of one byte or of eight.
    """
    framing = sum(2 if length < 256 else 9 for length in (AUTHENTICATION_BYTES, *lengths))
    return sum(lengths[1:]), AUTHENTICATION_BYTES + lengths[0] + framing


def _header(address: str, envelope: Envelope | Answer, tensors: Sequence[Tensor]) -> bytes:
    shapes = [_Shape(_dtype_name(x), list(x.shape)) for x in tensors]
    message = envelope.message
    kind, fields = (None, {}) if message is None else (message.kind, cast(_Fields, dict(message.fields)))
    header: _EnvelopeHeader | _AnswerHeader
    if isinstance(envelope, Envelope):
        order = (envelope.number, envelope.writes, envelope.after, envelope.confirmed)
        header = _EnvelopeHeader(
            VERSION, address, envelope.sender, envelope.life, *order, cast(str, kind), fields, shapes
        )
    else:
        question = (envelope.to, envelope.life, envelope.number, envelope.writes)
        progress = (envelope.epoch, envelope.received, envelope.durable)
        header = _AnswerHeader(VERSION, address, *question, *progress, kind, fields, shapes)
    encoded = _encoder.encode(header)
    if len(encoded) > HEADER_LIMIT_BYTES:
        raise LaconicError(
            f"a message of the kind {kind!r} has {len(encoded)} bytes beside its tensors, more than the "
            f"{HEADER_LIMIT_BYTES} that can be sent: put what is long into a tensor."
        )
    return encoded


def bytes_of(tensor: Tensor) -> memoryview:
    """Return a view of a contiguous tensor's memory, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()


def _dtype_name(tensor: Tensor) -> str:
    if tensor.dtype not in NAME_OF or tensor.layout != torch.strided:
        raise LaconicError(
            f"a tensor of {tensor.dtype} ({tensor.layout}) cannot be sent: make it dense, of a dtype such as float32."
        )
    return NAME_OF[tensor.dtype]


# ---------------------------------------------------------------------------------------------- from frames


def decode_envelope(frames: Sequence[Buffer], limits: Limits) -> tuple[str, Envelope]:
    """Decode a message to an actor: its address and its envelope, whose tensors are views of the frames."""
    header = decode(_envelope_decoder, frames, VERSION)
    _refuse_negative(header.life, header.after, header.confirmed, header.number - 1)
    tensors = _tensors(header.tensors, frames[1:], limits)
    message = ActorMessage(header.kind, cast(Mapping[str, Field], header.fields), tensors)
    order = (header.number, header.writes, header.after, header.confirmed)
    return header.address, Envelope(header.sender, header.life, *order, message)


def decode_answer(frames: Sequence[Buffer], limits: Limits) -> tuple[str, Answer]:
    """Decode an actor's answer: the actor's address and the answer."""
    header = decode(_answer_decoder, frames, VERSION)
    _refuse_negative(header.life, header.number, header.epoch, header.received, header.durable)
    tensors = _tensors(header.tensors, frames[1:], limits)
    fields = cast(Mapping[str, Field], header.fields)
    message = None if header.kind is None else ActorMessage(header.kind, fields, tensors)
    question = (header.to, header.life, header.number, header.writes)
    return header.address, Answer(*question, header.epoch, header.received, header.durable, message)


def decode(decoder: msgspec.msgpack.Decoder[HeaderT], frames: Sequence[Buffer], version: int) -> HeaderT:
    """Decode the first frame as a typed header of this version, or raise `Malformed`."""
    if not frames or len(frames[0]) > HEADER_LIMIT_BYTES:
        raise Malformed("a message without a header, or with one that is too long")
    try:
        header: Any = decoder.decode(frames[0])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"a header that cannot be decoded: {error}") from error
    if header.version != version:
        raise Malformed(f"a message of version {header.version}, where version {version} is expected")
    return cast(HeaderT, header)


def _tensors(shapes: Sequence[_Shape], frames: Sequence[Buffer], limits: Limits) -> tuple[Tensor, ...]:
    if len(shapes) != len(frames) or len(shapes) > limits.tensors:
        raise Malformed(f"{len(frames)} tensors where {len(shapes)} were announced and {limits.tensors} may be")
    if sum(map(len, frames)) > limits.nbytes:
        raise Malformed(f"more than {limits.nbytes} bytes of tensors")
    return tuple(map(_tensor, shapes, frames, [limits] * len(frames)))


def _tensor(shape: _Shape, frame: Buffer, limits: Limits) -> Tensor:
    dtype = DTYPES.get(shape.dtype)
    if dtype is None:
        raise Malformed(f"a tensor of {shape.dtype!r}")
    if len(shape.sizes) > limits.dimensions or any(not 0 <= size <= limits.nbytes for size in shape.sizes):
        raise Malformed(f"a tensor of the shape {shape.sizes[:8]}")
    if math.prod(shape.sizes) * dtype.itemsize != len(frame):
        raise Malformed(f"{len(frame)} bytes for a tensor of {shape.dtype} {shape.sizes[:8]}")
    if not len(frame):
        return torch.empty(shape.sizes, dtype=dtype)
    raw = torch.frombuffer(frame, dtype=torch.uint8)
    if raw.data_ptr() % dtype.itemsize:  # the memory of a small frame may not be aligned
        raw = raw.clone()
    return raw.view(dtype).view(shape.sizes)


def _refuse_negative(*numbers: int) -> None:
    if min(numbers) < 0:
        raise Malformed("a number below what is possible")
