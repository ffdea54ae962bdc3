"""Copies of large tensors in memory that is used again.

Fresh memory costs more than what is written to it: the kernel hands out and clears every page. A server copies its
values for nearly every read, so it keeps what its readers have let go.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import torch
from torch import Tensor


class Copies:
    """Hands out copies; when nobody holds one any more, by whatever view, its memory is ready for the next."""

    def __init__(self, spare: int = 8) -> None:
        self._spare = spare
        self._free: dict[int, deque[np.ndarray]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu" or not tensor.numel():
            return tensor.detach().clone()
        free = self._free.setdefault(tensor.nbytes, deque(maxlen=self._spare))
        try:
            memory = free.pop()
        except IndexError:
            memory = np.empty(tensor.nbytes, dtype=np.uint8)
        lent = memory[:]  # torch holds this view for as long as anything looks at the copy
        weakref.finalize(lent, free.append, memory).atexit = False
        made = torch.from_numpy(lent).view(tensor.dtype).view(tensor.shape)
        return made.copy_(tensor.detach())
