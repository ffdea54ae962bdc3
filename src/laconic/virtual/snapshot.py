"""A copy of tensors' bytes, with which the tensors of other workers are compared bit for bit.

A thousand workers compare the gradients of every step, so that little is done for each tensor: those that lie one
behind another, as in a bucket, are compared together.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from laconic.virtual.copy_on_write import same_bytes


class Snapshot:
    """The bytes of dense tensors at one moment; a place may also hold no tensor."""

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        self._kinds = [_kind(t) for t in tensors]
        by_address = sorted((t.data_ptr(), i, t.nbytes) for i, t in enumerate(tensors) if t is not None)
        self._runs: list[list[tuple[int, int]]] = []  # (tensor, bytes) one behind another in memory
        end = None
        for address, i, nbytes in by_address:
            if address != end:
                self._runs.append([])
            self._runs[-1].append((i, nbytes))
            end = address + nbytes
        self._contents = []
        for run in self._runs:
            first = tensors[run[0][0]]
            assert first is not None
            content = torch.empty(sum(nbytes for _, nbytes in run), dtype=torch.uint8)
            ctypes.memmove(content.data_ptr(), first.data_ptr(), content.nbytes)
            self._contents.append(content)

    @staticmethod
    def possible(tensors: Sequence[Tensor | None]) -> bool:
        """Return whether each of these tensors is one range of the CPU's memory."""
        return all(t is None or _is_dense(t) for t in tensors)

    def equals(self, tensors: Sequence[Tensor | None]) -> bool:
        """Return whether these tensors have the same types, layouts and bits."""
        if [_kind(t) for t in tensors] != self._kinds:
            return False
        addresses = [0 if t is None else t.data_ptr() for t in tensors]
        return all(_run_equals(*run, addresses) for run in zip(self._runs, self._contents, strict=True))


def _run_equals(run: Sequence[tuple[int, int]], content: Tensor, addresses: Sequence[int]) -> bool:
    begin, kept = addresses[run[0][0]], content.data_ptr()
    offsets = accumulate((nbytes for _, nbytes in run), initial=0)
    places = [(addresses[i], offset, nbytes) for (i, nbytes), offset in zip(run, offsets, strict=False)]
    if all(address == begin + offset for address, offset, _ in places):
        return same_bytes(begin, kept, content.nbytes)
    return all(same_bytes(address, kept + offset, nbytes) for address, offset, nbytes in places)


def _kind(tensor: Tensor | None) -> Any:
    if tensor is None or tensor.layout != torch.strided:
        return tensor if tensor is None else tensor.layout
    return tensor.dtype, tensor.shape, tensor.stride()


def _is_dense(tensor: Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return False
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
