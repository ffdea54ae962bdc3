"""Letters as frames: one typed header, then each tensor's bytes as they lie in memory.

Nothing is ever unpickled. What comes from outside is looked at before it is believed: the decoder either returns
what was said or raises `Malformed`, and whoever receives counts that and goes on.
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
SEAL_BYTES = 40
"""What stands before a header to vouch for the message (`seal.py`)."""

_NAMES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu "
    "float4_e2m1fn_x2 complex64 complex128 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
)
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name)}
NAME_OF = {dtype: name for name, dtype in DTYPES.items()}

Said = TypeVar("Said", bound=msgspec.Struct)
Buffer = bytes | memoryview


class Malformed(LaconicError, ValueError):
    """Something that is no message of this run: it is dropped and counted."""


@dataclass(frozen=True)
class Limits:
    """How much one message may hold, whoever sent it."""

    tensors: int = 1 << 16
    nbytes: int = 1 << 36
    dimensions: int = 64


class _Shape(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    dtype: str
    sizes: list[int]


_Fields = dict[str, int | float | str | bool | list[int | float | str] | None]


class _Written(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """An `Envelope`, less its tensors' bytes."""

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


class _Answered(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """An `Answer`, less its tensors' bytes; without a letter, its kind is none."""

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
_written = msgspec.msgpack.Decoder(_Written)
_answered = msgspec.msgpack.Decoder(_Answered)


# ---------------------------------------------------------------------------------------------- to frames


def encode(address: str, said: Envelope | Answer) -> list[Buffer]:
    """The header, and a view of each tensor's memory."""
    tensors = () if said.message is None else said.message.tensors
    return [_header(address, said, tensors), *(bytes_of(_plain(x)) for x in tensors)]


def wire_bytes(address: str, said: Envelope | Answer) -> tuple[int, int]:
    """What this message will be on the wire, exactly: bytes of tensors, and all others."""
    tensors = () if said.message is None else said.message.tensors
    return bytes_in([len(_header(address, said, tensors)), *(x.nbytes for x in tensors)])


def bytes_in(lengths: Sequence[int]) -> tuple[int, int]:
    """The same for a header and tensors of these lengths. ZeroMQ puts a flag before each frame, and a length of one
    byte or of eight."""
    framing = sum(2 if length < 256 else 9 for length in (SEAL_BYTES, *lengths))
    return sum(lengths[1:]), SEAL_BYTES + lengths[0] + framing


def _header(address: str, said: Envelope | Answer, tensors: Sequence[Tensor]) -> bytes:
    shapes = [_Shape(_dtype_name(x), list(x.shape)) for x in tensors]
    message = said.message
    kind, fields = (None, {}) if message is None else (message.kind, cast(_Fields, dict(message.fields)))
    header: _Written | _Answered
    if isinstance(said, Envelope):
        numbers = (said.sender, said.life, said.number, said.writes, said.after, said.confirmed)
        header = _Written(VERSION, address, *numbers, cast(str, kind), fields, shapes)
    else:
        of = (said.to, said.life, said.number, said.writes, said.epoch, said.received, said.durable)
        header = _Answered(VERSION, address, *of, kind, fields, shapes)
    encoded = _encoder.encode(header)
    if len(encoded) > HEADER_LIMIT_BYTES:
        raise LaconicError(
            f"a letter of the kind {kind!r} has {len(encoded)} bytes beside its tensors, more than the "
            f"{HEADER_LIMIT_BYTES} that travel: put what is long into a tensor."
        )
    return encoded


def bytes_of(tensor: Tensor) -> memoryview:
    """A contiguous tensor's memory, not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()


def _dtype_name(tensor: Tensor) -> str:
    if tensor.dtype not in NAME_OF or tensor.layout != torch.strided:
        raise LaconicError(f"a tensor of {tensor.dtype} ({tensor.layout}) cannot travel: make it dense and plain.")
    return NAME_OF[tensor.dtype]


# ---------------------------------------------------------------------------------------------- from frames


def decode_envelope(frames: Sequence[Buffer], limits: Limits) -> tuple[str, Envelope]:
    """The address and what is to be handed in there; its tensors are views of the frames."""
    said = decode(_written, frames, VERSION)
    _refuse_negative(said.life, said.after, said.confirmed, said.number - 1)
    message = ActorMessage(
        said.kind, cast(Mapping[str, Field], said.fields), _tensors(said.tensors, frames[1:], limits)
    )
    return said.address, Envelope(said.sender, said.life, said.number, said.writes, said.after, said.confirmed, message)


def decode_answer(frames: Sequence[Buffer], limits: Limits) -> tuple[str, Answer]:
    """Whose answer it is, and the answer."""
    said = decode(_answered, frames, VERSION)
    _refuse_negative(said.life, said.number, said.epoch, said.received, said.durable)
    tensors = _tensors(said.tensors, frames[1:], limits)
    message = None if said.kind is None else ActorMessage(said.kind, cast(Mapping[str, Field], said.fields), tensors)
    numbers = (said.to, said.life, said.number, said.writes, said.epoch, said.received, said.durable)
    return said.address, Answer(*numbers, message)


def decode(decoder: msgspec.msgpack.Decoder[Said], frames: Sequence[Buffer], version: int) -> Said:
    """A typed header from the first frame, of this version."""
    if not frames or len(frames[0]) > HEADER_LIMIT_BYTES:
        raise Malformed("a message without a header, or with one that is too long")
    try:
        said: Any = decoder.decode(frames[0])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"a header that says nothing: {error}") from error
    if said.version != version:
        raise Malformed(f"a message of version {said.version}, where version {version} is spoken")
    return cast(Said, said)


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
    if raw.data_ptr() % dtype.itemsize:  # small frames lie where there was room
        raw = raw.clone()
    return raw.view(dtype).view(shape.sizes)


def _refuse_negative(*numbers: int) -> None:
    if min(numbers) < 0:
        raise Malformed("a number below what is possible")
