"""Snapshots of actors on disk: one file each, complete or absent, and the one before in case the last is damaged.

A file holds plain data as MessagePack, tensors as they lie in memory and a checksum at the end; nothing in it could run
when it is read.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import msgspec
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from laconic.files import replacing
from laconic.reading import Natural, Source
from laconic.rpc.frames import DTYPES, NAME_OF, Malformed, bytes_of

_MAGIC = b"laconic snapshot 1\n"
_LENGTHS = struct.Struct("<QQ")  # of the structure and of the tensors
_CHECK_BYTES = 16
_TENSOR = 1  # the MessagePack extension that stands for a tensor: where it begins, its dtype and shape
_ALIGNED = 64
_KEPT = 2


class _Place(msgspec.Struct, array_like=True, frozen=True):
    begin: int
    dtype: str
    sizes: list[int]


def write(path: Path, state: dict[str, Any]) -> None:
    """Write this state to `path` so that it is there even if the host loses power the moment after."""
    buffers: list[memoryview] = []
    end = 0

    def place(entry: Any) -> msgspec.msgpack.Ext:
        nonlocal end
        if not isinstance(entry, Tensor):
            raise TypeError(f"a snapshot holds numbers, text and tensors, not {type(entry).__name__}")
        tensor = entry.detach().cpu().contiguous()
        begin, padding = end, -tensor.nbytes % _ALIGNED
        buffers.extend((bytes_of(tensor), memoryview(bytes(padding))))
        end += tensor.nbytes + padding
        where = _Place(begin, NAME_OF[tensor.dtype], list(tensor.shape))
        return msgspec.msgpack.Ext(_TENSOR, msgspec.msgpack.encode(where))

    structure = msgspec.msgpack.encode(state, enc_hook=place)
    parts = [memoryview(_MAGIC + _LENGTHS.pack(len(structure), end)), memoryview(structure), *buffers]
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside, beside.open("wb", buffering=0) as file:
        for part in [*parts, memoryview(_checksum(parts))]:
            _write_all(file.fileno(), part)
        os.fsync(file.fileno())
    _sync_folder(path.parent)


def read(path: Path) -> dict[str, Any]:
    """Return the state that a file holds, or raise `Malformed` if the file is damaged."""
    whole = bytearray(path.read_bytes())
    begin = len(_MAGIC) + _LENGTHS.size
    if len(whole) < begin + _CHECK_BYTES or not whole.startswith(_MAGIC):
        raise Malformed(f"{path} is no snapshot")
    structure_bytes, tensor_bytes = _LENGTHS.unpack_from(whole, len(_MAGIC))
    if len(whole) != begin + structure_bytes + tensor_bytes + _CHECK_BYTES:
        raise Malformed(f"{path} is not as long as it should be")
    view = memoryview(whole)
    if _checksum([view[:-_CHECK_BYTES]]) != view[-_CHECK_BYTES:]:
        raise Malformed(f"{path} is damaged")
    tensors = begin + structure_bytes

    def take(code: int, data: memoryview) -> Tensor:
        where = msgspec.msgpack.decode(data, type=_Place)
        flat = torch.empty(where.sizes, dtype=DTYPES[where.dtype])
        if flat.numel():
            bytes_of(flat)[:] = view[tensors + where.begin : tensors + where.begin + flat.nbytes]
        return flat

    state: dict[str, Any] = msgspec.msgpack.decode(view[begin:tensors], ext_hook=take)
    return state


class Snapshots:
    """One actor's folder: numbered snapshots, of which the last two are kept, and how often the actor was started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def begin_epoch(self) -> int:
        """Count this start of the actor on disk, before any worker can learn of it, and return the count."""
        file = self.folder / "epoch"
        source = Source(file, "count of a server's starts", "remove the run's folder, and start a new run.")
        epoch = source.value(source.text(), Natural, lax=True) + 1 if file.exists() else 1
        with replacing(file) as beside:
            beside.write_text(str(epoch))
            with beside.open("rb") as written:
                os.fsync(written.fileno())
        _sync_folder(self.folder)
        return epoch

    def newest(self) -> dict[str, Any] | None:
        """Return the newest undamaged state, if there is one."""
        for path in reversed(self._files()):
            try:
                return read(path)
            except (Malformed, OSError):
                continue
        return None

    def save(self, state: dict[str, Any]) -> None:
        """Write the next snapshot and delete those that are no longer needed."""
        files = self._files()
        number = int(files[-1].suffix[1:]) + 1 if files else 1
        write(self.folder / f"snapshot.{number:012d}", state)
        for old in files[: len(files) + 1 - _KEPT]:
            old.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("snapshot.*") if path.suffix[1:].isdigit())


def tensor_bytes(state: Any) -> int:
    """Return the bytes of all tensors anywhere in a state."""
    if isinstance(state, Tensor):
        return state.nbytes
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return sum(map(tensor_bytes, parts))


def _checksum(parts: list[memoryview]) -> bytes:
    """Return a checksum against damage, not against forgery: its key is no secret."""
    sums = Cipher(algorithms.AES(bytes(16)), modes.GCM(bytes(12))).encryptor()
    for part in parts:
        sums.authenticate_additional_data(part)
    sums.finalize()
    return sums.tag


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
