"""A group without a network: its operations complete at once, with this worker's own tensors as everybody's.

What a worker does beside waiting (packing, encoding, decoding, stepping) then takes its usual time, and the network
none. The results are not averages: an echo group is for timing, not for training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laconic.runtime.counted_group import CountedGroup
from laconic.worker import Handle


class EchoHandle:
    """A handle of an operation that has completed already."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def done(self) -> bool:
        return True

    def wait(self) -> Any:
        return self._result


class EchoGroup(CountedGroup):
    """A group of as many members as the real one, each of which sends what this worker sends.

    Where the others' tensors need storage of their own, `copy_seconds` is the time it took to write them: the
    transport's work, not the worker's.
    """

    copy_seconds = 0.0

    def barrier(self) -> Handle:
        return EchoHandle(None)

    def _all_reduce(self, tensor: Tensor, op: str) -> Handle:
        return EchoHandle(tensor)

    def _all_gather(self, tensor: Tensor, out: Tensor | None) -> Handle:
        rows = tensor.expand(self.size, *tensor.shape)
        return self._copied(tensor, rows.contiguous if out is None else lambda: out.view(rows.shape).copy_(rows))

    def _all_to_all(self, tensor: Tensor, sends: list[int], receives: list[int], out: Tensor | None) -> Handle:
        if sends == receives:
            return EchoHandle(tensor)
        return self._copied(tensor, lambda: tensor.split(sends)[self.rank].repeat(self.size)[: sum(receives)])

    def _reduce_scatter(self, flat: Tensor) -> Handle:
        return EchoHandle(flat[: flat.numel() // self.size])

    def _broadcast(self, tensor: Tensor, root: int) -> Handle:
        return EchoHandle(tensor)

    def _send(self, tensor: Tensor, to: int, tag: int) -> Handle:
        return EchoHandle(tensor)

    def _receive(self, tensor: Tensor, source: int, tag: int) -> Handle:
        return EchoHandle(tensor)

    def _copied(self, sent: Tensor, make: Callable[[], Tensor]) -> EchoHandle:
        on_gpu = sent.is_cuda
        if on_gpu:
            torch.cuda.synchronize(sent.device)  # what the worker computed before is its own
        begin = time.perf_counter()
        copied = make()
        if on_gpu:
            torch.cuda.synchronize(sent.device)
        self.copy_seconds += time.perf_counter() - begin
        return EchoHandle(copied)
