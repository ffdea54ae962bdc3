"""Control messages on the encrypted socket: sessions, their keys, heartbeats, snapshots and goodbyes."""

from __future__ import annotations

import msgspec

from laconic.rpc.frames import HEADER_LIMIT_BYTES, Malformed

VERSION = 1


class Hello(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=1):
    """A worker opens a session, or repeats its request; `token` is random, one per process."""

    version: int
    worker: int
    life: int
    token: bytes
    addresses: list[str]


class Welcome(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=2):
    """The server's answer to `Hello`: the session's key, the port for tensors, and this worker's progress with those of
    its actors that are served here: by address the epoch, the writes received and how many of these are durable."""

    version: int
    session: bytes
    key: bytes
    password: str
    port: int
    mailboxes: dict[str, tuple[int, int, int]]


class Beat(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=3):
    """A heartbeat: a worker sends it, and the server sends it back."""

    session: bytes


class Unknown(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=4):
    """The server does not know this session, so that the worker must send `Hello` again."""

    session: bytes


class Save(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=5):
    """A worker asks an actor to take a snapshot, because it keeps too many writes for it or is about to leave."""

    session: bytes
    address: str


class Saved(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=6):
    """The server reports that so many of this worker's writes to an actor are durable now."""

    session: bytes
    address: str
    durable: int


class Goodbye(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=7):
    """A worker has finished and is not to be counted as lost; the server sends the same back."""

    session: bytes


class Refused(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=8):
    """The server refuses to open a session, and says why."""

    why: str


Control = Hello | Welcome | Beat | Unknown | Save | Saved | Goodbye | Refused

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def encode(message: Control) -> bytes:
    """Encode a control message as one frame."""
    return _encoder.encode(message)


def decode(frame: bytes) -> Control:
    """Decode a control message, or raise `Malformed`."""
    if len(frame) > HEADER_LIMIT_BYTES:
        raise Malformed("a control message that is too long")
    try:
        message = _decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"a control message that cannot be decoded: {error}") from error
    if isinstance(message, Hello | Welcome) and message.version != VERSION:
        raise Malformed(f"a control message of version {message.version}, where version {VERSION} is expected")
    if isinstance(message, Hello) and message.life < 0:
        raise Malformed("a hello with a negative life")
    return message
