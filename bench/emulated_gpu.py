"""Many workers played by one GPU, for `gpu_step.py`: what others send is this worker's own, and takes its time.

Every operation holds 16 of the GPU's blocks on a stream of its own for as long as its bytes would take on a link, as
NCCL's kernels do, and then delivers this worker's tensors as everybody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from triton.language.extra.cuda import globaltimer

from laconic.real.profiling.echo_group import EchoGroup
from laconic.real.worker import RealWorker

BLOCKS = 16


@triton.jit
def _hold(nanoseconds):
    end = globaltimer() + nanoseconds
    while globaltimer() < end:
        pass


class StreamHandle:
    """A handle of an operation on the communication stream; waiting for it blocks the current stream only."""

    stream_ordered = True

    def __init__(self, result: Any, stream: torch.cuda.Stream) -> None:
        self._result, self._stream = result, stream

    def done(self) -> bool:
        return self._stream.query()

    def wait(self) -> Any:
        torch.cuda.current_stream().wait_stream(self._stream)
        return self._result


class EmulatedGroup(EchoGroup):
    """An echo group whose operations take the time of their bytes on a link of so many bits a second."""

    def __init__(self, ranks: tuple[int, ...], ledger: Any, bits_per_second: float) -> None:
        super().__init__(0, ranks, ledger)
        self._rate, self._stream = bits_per_second, torch.cuda.Stream()
        self._counted_bytes = 0.0

    def _all_reduce(self, tensor: Tensor, op: str) -> StreamHandle:
        return self._held(tensor)

    def _all_gather(self, tensor: Tensor, out: Tensor | None) -> StreamHandle:
        rows = tensor.new_empty(self.size, *tensor.shape) if out is None else out
        return self._held(rows.copy_(tensor.expand(self.size, *tensor.shape)))

    def _all_to_all(self, tensor: Tensor, sends: list[int], receives: list[int], out: Tensor | None) -> StreamHandle:
        return self._held(super()._all_to_all(tensor, sends, receives, out).wait())

    def _reduce_scatter(self, flat: Tensor) -> StreamHandle:
        return self._held(flat[: flat.numel() // self.size])

    def _held(self, result: Tensor) -> StreamHandle:
        sent = self._ledger.sent_bytes()
        seconds, self._counted_bytes = 8 * (sent - self._counted_bytes) / self._rate, sent
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            _hold[(BLOCKS,)](int(seconds * 1e9))
        return StreamHandle(result, self._stream)


class EmulatedWorker(RealWorker):
    """The first of many workers, whose groups are emulated."""

    def __init__(self, workers: int, bits_per_second: float) -> None:
        super().__init__()
        self._workers, self._rate = workers, bits_per_second
        self.world = self.group(range(workers))  # type: ignore[assignment]

    def group(self, ranks: Sequence[int]) -> EmulatedGroup:  # type: ignore[override]
        return EmulatedGroup(tuple(ranks), self.ledger, self._rate)

    def held_seconds(self) -> float:
        """Return for how long messages have held the GPU."""
        return 8 * self.ledger.sent_bytes() / self._rate
