"""Memory that equal workers share without noticing it, by the kernel's copy-on-write.

An *image* holds bytes that never change. An *arena* is a worker's own memory at an address that never changes; adopting
an image maps it there privately, so that reading costs no memory of its own and writing copies just the page. The
kernel also knows whether anything has been written since, which cannot be tracked otherwise: users' scripts may write
to that memory too.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Place = tuple[int, torch.dtype, torch.Size, tuple[int, ...]]
"""A tensor's address, type, shape and strides."""

_PRIVATE, _FIXED, _ANONYMOUS = 0x02, 0x10, 0x20
_READ_WRITE = 0x3
_FAILED = ctypes.c_void_p(-1).value
_ALIGNMENT = 64
_UNTOUCHED = 0  # a page's three highest flags (present, swapped, file-backed): it was never read
_READ = 5  # the page is present, and still file-backed
_CLEAN = bytes(flags for flags in range(256) if flags >> 5 in (_UNTOUCHED, _READ))
"""The highest bytes of a page's 64 flags that say that nothing was written to it."""


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return libc


@cache
def _page_flags() -> int:
    return os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)


os.register_at_fork(after_in_child=_page_flags.cache_clear)  # a child would read its parent's flags


@cache
def available() -> bool:
    """Return whether the kernel can share memory so (Linux can); elsewhere every worker keeps its own memory."""
    try:
        return sys.platform == "linux" and sys.byteorder == "little" and _page_flags() >= 0
    except OSError:
        return False


def same_bytes(a: int, b: int, nbytes: int) -> bool:
    """Return whether the memory at two addresses is equal."""
    return bool(_libc().memcmp(a, b, nbytes) == 0)


def place_of(tensor: Tensor) -> Place:
    """Return where a tensor lies in memory, and how."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


class Arena:
    """Memory at a fixed address for tensors of the given shapes and types, in order."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        offsets, end = [], 0
        for tensor in tensors:
            offsets.append(end)
            end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = max(-(-end // mmap.PAGESIZE), 1) * mmap.PAGESIZE
        self._address = self._map(None, _PRIVATE | _ANONYMOUS, -1)
        self._bytes = (ctypes.c_char * self.nbytes).from_address(self._address)
        unmapping = weakref.finalize(self._bytes, _libc().munmap, self._address, self.nbytes)  # tensors keep it alive
        unmapping.atexit = False  # tensors may be read until the process ends
        self.tensors = [self._tensor(like, at) for like, at in zip(tensors, offsets, strict=True)]
        self.places = list(map(place_of, self.tensors))

    def _map(self, address: int | None, flags: int, file: int) -> int:
        mapped = _libc().mmap(address, self.nbytes, _READ_WRITE, flags, file, 0)
        if mapped == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(mapped)

    def _tensor(self, like: Tensor, offset: int) -> Tensor:
        if not like.numel():
            return like.detach().clone()
        flat = torch.frombuffer(self._bytes, dtype=like.dtype, count=like.numel(), offset=offset)
        return flat.as_strided(like.shape, like.stride(), flat.storage_offset())

    def adopt(self, image: Image) -> None:
        """Map the image into this memory, which then holds its bytes; tensors and aliases stay where they are."""
        self._map(self._address, _PRIVATE | _FIXED, image.file)

    def written(self) -> bool:
        """Return whether anything has been written to this memory since an image was adopted."""
        pages = self.nbytes // mmap.PAGESIZE
        raw = os.pread(_page_flags(), 8 * pages, self._address // mmap.PAGESIZE * 8)
        return bool(raw[7::8].translate(None, _CLEAN))

    def image(self) -> Image:
        """Copy this memory's content to a new image."""
        return Image(memoryview(self._bytes))

    def reads_as(self, image: Image) -> bool:
        """Return whether this memory holds the image's bytes."""
        content = image.content()  # held until the comparison is over
        return len(content) == self.nbytes and same_bytes(self._address, content.ctypes.data, self.nbytes)


class Image:
    """A copy of some bytes in a file that exists in memory only."""

    def __init__(self, content: memoryview) -> None:
        self.file = os.memfd_create("laconic", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.file)
        os.ftruncate(self.file, content.nbytes)
        done = 0
        while done < content.nbytes:
            done += os.pwrite(self.file, content[done:], done)

    def content(self) -> NDArray[np.uint8]:
        return np.frombuffer(mmap.mmap(self.file, 0, access=mmap.ACCESS_READ), dtype=np.uint8)
