"""A group in which everything has been said already: its operations return at once, with this worker's own words.

What a worker does beside waiting (packing, encoding, decoding, stepping) then costs what it costs, and the network
nothing. Numbers that come back are not averages: an echo is for timing, not for training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from laconic.runtime.counted_group import CountedGroup
from laconic.worker import Handle


class Echo:
    """A handle that never waits."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def done(self) -> bool:
        return True

    def wait(self) -> Any:
        return self._result


class EchoGroup(CountedGroup):
    """As many members as the real group, all of whom say what this worker says.

    Where others' words need storage of their own, `made_seconds` is what it took to write them: a transport's work, not
    the worker's.
    """

    made_seconds = 0.0

    def barrier(self) -> Handle:
        return Echo(None)

    def _all_reduce(self, tensor: Tensor, op: str) -> Handle:
        return Echo(tensor)

    def _all_gather(self, tensor: Tensor) -> Handle:
        return self._made(lambda: tensor.expand(self.size, *tensor.shape).contiguous())

    def _all_to_all(self, tensor: Tensor, sends: list[int], receives: list[int]) -> Handle:
        if sends == receives:
            return Echo(tensor)
        return self._made(lambda: tensor.split(sends)[self.rank].repeat(self.size)[: sum(receives)])

    def _reduce_scatter(self, flat: Tensor) -> Handle:
        return Echo(flat[: flat.numel() // self.size])

    def _broadcast(self, tensor: Tensor, root: int) -> Handle:
        return Echo(tensor)

    def _send(self, tensor: Tensor, to: int, tag: int) -> Handle:
        return Echo(tensor)

    def _receive(self, tensor: Tensor, source: int, tag: int) -> Handle:
        return Echo(tensor)

    def _made(self, make: Callable[[], Tensor]) -> Echo:
        begin = time.perf_counter()
        made = make()
        self.made_seconds += time.perf_counter() - begin
        return Echo(made)
