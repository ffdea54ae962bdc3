"""What travels around a ring of devices: keys and values, and sums of their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from laconic.parallel.message_code import MessageCode
from laconic.runtime.meeting import Meeting
from laconic.worker import Group, Handle, Worker

Direction = Literal["forward", "backward"]


class Ring:
    """Devices that pass messages to their successors.

    A message is a flat tensor, or the bytes of its code. Keys and values are encoded once, by the device that has them,
    and travel unchanged; sums of gradients are decoded, added to and encoded again on every hop.

    - `group`: the devices.
    - `codes`: how keys and values are encoded ("forward"), and their gradients ("backward").
    - `seed`: of codes that draw random numbers.
    """

    def __init__(self, worker: Worker, group: Group, codes: Mapping[Direction, MessageCode], seed: int = 0) -> None:
        self.worker, self.group, self.codes, self.seed = worker, group, codes, seed
        self.calls = 0

    def encoded(self, x: Tensor, direction: Direction, what: str) -> Tensor:
        """Return the message of a flat tensor; random draws depend on `what` it is, the same at both ends."""
        code = self.codes.get(direction)
        if code is None or self.group.size == 1:
            return x
        self.worker.coded("encode", code.words, [x.numel()])
        return code.encode(x, self._meeting(what))

    def decoded(self, message: Tensor, numel: int, dtype: torch.dtype, direction: Direction, what: str) -> Tensor:
        """Return the flat tensor of a message."""
        code = self.codes.get(direction)
        if code is None:
            return message
        self.worker.coded("decode", code.words, [numel])
        return code.decode(message, numel, self._meeting(what)).to(dtype)

    def room(self, like: Tensor, numel: int, dtype: torch.dtype, direction: Direction) -> Tensor:
        """Return memory for the message of so many elements, on the same device as a tensor."""
        code = self.codes.get(direction)
        if code is None:
            return like.new_empty(numel, dtype=dtype)
        return like.new_empty(code.nbytes(numel), dtype=torch.uint8)

    def begin_passing(self, messages: Sequence[Tensor], into: Sequence[Tensor]) -> Sequence[Handle]:
        """Begin to send messages to the next device, and to receive as many from the one before."""
        if not messages:
            return []
        after, before = (self.group.rank + 1) % self.group.size, (self.group.rank - 1) % self.group.size
        return self.group.swap([(x, after) for x in messages], [(x, before) for x in into])

    def _meeting(self, what: str) -> Meeting:
        return Meeting(0, self.group.size, 0, what, self.seed)


def finish(handles: Sequence[Handle]) -> None:
    """Wait until messages have come and gone."""
    for handle in handles:
        handle.wait()
