"""What workers and servers say on the encrypted socket: who is there, with which key, and for how long still."""

from __future__ import annotations

import msgspec

from laconic.rpc.frames import HEADER_LIMIT_BYTES, Malformed

VERSION = 1


class Hello(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=1):
    """A worker opens a session, or asks again; `token` is random, one per process."""

    version: int
    worker: int
    life: int
    token: bytes
    addresses: list[str]


class Welcome(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=2):
    """The session's key, where its tensors go, and how far this worker is with those of its machines that are here:
    by address the epoch, the writes received and how many of these are durable."""

    version: int
    session: bytes
    key: bytes
    password: str
    port: int
    mailboxes: dict[str, tuple[int, int, int]]


class Beat(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=3):
    """I live; from a server, as the answer to a worker's."""

    session: bytes


class Unknown(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=4):
    """There is no such session here: say hello."""

    session: bytes


class Save(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=5):
    """A worker keeps too much for this machine: it should make what it has durable."""

    session: bytes
    address: str


class Saved(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=6):
    """So many of this worker's writes are durable now."""

    session: bytes
    address: str
    durable: int


class Goodbye(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=7):
    """A worker is done, and not lost; the server says the same back."""

    session: bytes


class Refused(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=8):
    """No session, and why."""

    why: str


Control = Hello | Welcome | Beat | Unknown | Save | Saved | Goodbye | Refused

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def encode(said: Control) -> bytes:
    return _encoder.encode(said)


def decode(frame: bytes) -> Control:
    if len(frame) > HEADER_LIMIT_BYTES:
        raise Malformed("a control message that is too long")
    try:
        said = _decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"a control message that says nothing: {error}") from error
    if isinstance(said, Hello | Welcome) and said.version != VERSION:
        raise Malformed(f"a control message of version {said.version}, where version {VERSION} is spoken")
    if isinstance(said, Hello) and said.life < 0:
        raise Malformed("a hello from before anybody lived")
    return said
