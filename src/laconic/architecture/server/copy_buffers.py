"""Copies of large tensors in memory that is used again.

Fresh memory costs more than writing to it: the kernel maps and clears every page. A server copies its values for nearly
every read, so it reuses the memory of copies that its readers have released.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import torch
from torch import Tensor


class Copies:
    """Makes copies of tensors; when no view of a copy exists any more, its memory is used for the next."""

    def __init__(self, spare: int = 8) -> None:
        self._spare = spare
        self._free: dict[int, deque[np.ndarray]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """Return a copy of this tensor."""
        if tensor.device.type != "cpu" or not tensor.numel():
            return tensor.detach().clone()
        free = self._free.setdefault(tensor.nbytes, deque(maxlen=self._spare))
        try:
            memory = free.pop()
        except IndexError:
            memory = np.empty(tensor.nbytes, dtype=np.uint8)
        lent = memory[:]  # torch holds this view for as long as any view of the copy exists
        weakref.finalize(lent, free.append, memory).atexit = False
        made = torch.from_numpy(lent).view(tensor.dtype).view(tensor.shape)
        return made.copy_(tensor.detach())
