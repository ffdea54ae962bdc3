"""The group of one worker that shares its parameters with nobody: replicas of a model that has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from laconic.runtime.counted_group import CountedGroup
from laconic.worker import Handle, Ledger


@dataclass(frozen=True, eq=False)
class Done:
    """A handle of an operation that is over."""

    result: Any = None

    def done(self) -> bool:
        return True

    def wait(self) -> Any:
        return self.result


class SoloGroup(CountedGroup):
    """A group with one member, who has every result already; nothing is sent."""

    def __init__(self, rank: int, ledger: Ledger) -> None:
        super().__init__(0, (rank,), ledger)

    def barrier(self) -> Handle:
        return Done()

    def _all_reduce(self, tensor: Tensor, op: str) -> Handle:
        return Done(tensor)

    def _all_gather(self, tensor: Tensor, out: Tensor | None) -> Handle:
        return Done(tensor[None] if out is None else out.copy_(tensor.view_as(out)))

    def _all_to_all(self, tensor: Tensor, sends: list[int], receives: list[int], out: Tensor | None) -> Handle:
        return Done(tensor if out is None else out.copy_(tensor.view_as(out)))

    def _reduce_scatter(self, flat: Tensor) -> Handle:
        return Done(flat)

    def _broadcast(self, tensor: Tensor, root: int) -> Handle:
        return Done(tensor)

    def _send(self, tensor: Tensor, to: int, tag: int) -> Handle:
        raise AssertionError("a group of one has nobody to send to")

    def _receive(self, tensor: Tensor, source: int, tag: int) -> Handle:
        raise AssertionError("a group of one has nobody to receive from")
