"""A group that counts the bytes of every operation, whichever transport carries it.

Both engines count here, so that they cannot disagree: bytes are those handed over times the factor of the algorithm
that the transport uses. `bench/ledger.py` checks the factors against a network interface's own counter.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from laconic.collective.execute import execute
from laconic.collective.flows import tree_children
from laconic.collective.live_probe import Measured, probe_group
from laconic.collective.program import Program
from laconic.values.wire import wire_factor
from laconic.worker import Coding, Communication, Handle, Ledger


class CountedGroup(ABC):
    """A group that records each operation's bytes in the ledger and then lets the engine start it."""

    def __init__(self, rank: int, ranks: tuple[int, ...], ledger: Ledger, host_size: int = 1) -> None:
        self.rank, self.ranks, self.size = rank, ranks, len(ranks)
        self._ledger, self._workers_of_a_host = ledger, host_size
        self.remembered: dict[str, Any] = {}

    @cached_property
    def host_size(self) -> int:
        """How many neighbouring members share a host, where each has so many workers of neighbouring ranks: 1 where
        hosts have unequal numbers of members. It is counted when it is first asked for: thousands of virtual workers
        have a group of all each."""
        counts = Counter(rank // self._workers_of_a_host for rank in self.ranks)
        return counts.popitem()[1] if len(set(counts.values())) == 1 else 1

    def all_reduce(self, tensor: Tensor, op: Literal["sum", "max"] = "sum", control: float = 0.0) -> Handle:
        self._count("all_reduce", tensor.nbytes, control)
        return self._all_reduce(tensor, op)

    def all_gather(self, tensor: Tensor, control: float = 0.0, out: Tensor | None = None) -> Handle:
        self._count("all_gather", tensor.nbytes, control)
        return self._all_gather(tensor, out)

    def all_to_all(
        self,
        tensor: Tensor,
        send_lengths: Sequence[int] | None = None,
        receive_lengths: Sequence[int] | None = None,
        control: float = 0.0,
        out: Tensor | None = None,
    ) -> Handle:
        block = tensor.numel() // self.size
        sends = [block] * self.size if send_lengths is None else list(send_lengths)
        receives = [block] * self.size if receive_lengths is None else list(receive_lengths)
        sent, received = (tensor.element_size() * (sum(n) - n[self.rank]) for n in (sends, receives))
        self._ledger.record("all_to_all", sent, received, control)
        return self._all_to_all(tensor, sends, receives, out)

    def reduce_scatter(self, tensor: Tensor, control: float = 0.0) -> Handle:
        flat = tensor.contiguous().view(-1)
        self._count("reduce_scatter", tensor.nbytes, control)
        return self._reduce_scatter(flat)

    def broadcast(self, tensor: Tensor, root: int = 0, control: float = 0.0) -> Handle:
        children = len(tree_children((self.rank - root) % self.size, self.size))
        received = tensor.nbytes if self.rank != root else 0
        self._ledger.record("broadcast", tensor.nbytes * children, received, control)
        return self._broadcast(tensor, root)

    def send(self, tensor: Tensor, to: int, tag: int = 0, control: float = 0.0) -> Handle:
        self._ledger.record("send", tensor.nbytes, 0, control)
        return self._send(tensor, to, tag)

    def receive(self, tensor: Tensor, source: int, tag: int = 0, control: float = 0.0) -> Handle:
        self._ledger.record("receive", 0, tensor.nbytes, control)
        return self._receive(tensor, source, tag)

    def swap(
        self,
        sends: Sequence[tuple[Tensor, int]],
        receives: Sequence[tuple[Tensor, int]],
        control: float = 0.0,
    ) -> Sequence[Handle]:
        for x, _ in sends:
            self._ledger.record("send", x.nbytes, 0, control)
        for x, _ in receives:
            self._ledger.record("receive", 0, x.nbytes, control)
        return self._swap(sends, receives)

    def _swap(self, sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]]) -> Sequence[Handle]:
        # gloo tells a sender that its receiver is ready, behind what waits to be sent on the same connection: if sends
        # came first, two that exchange would send one after the other.
        receiving = [self._receive(x, source, 0) for x, source in receives]
        return [*receiving, *(self._send(x, to, 0) for x, to in sends)]

    def run(
        self, program: Program, flat: Tensor, control: float = 0.0, coding: Coding | None = None
    ) -> Communication[Tensor]:
        return execute(program, flat, self, control, coding)

    def measure(self, device: torch.device) -> Communication[Measured]:
        return probe_group(self, device)

    def clock_seconds(self) -> float:
        return time.perf_counter()

    def compute_alike(self, answer: Tensor, into: Tensor, compute: Callable[[], Any]) -> None:
        compute()

    def _count(self, operation: str, nbytes: int, control: float) -> None:
        """Record an operation in which every member sends and receives the same."""
        each_way = wire_factor(operation, self.size) * nbytes
        self._ledger.record(operation, each_way, each_way, control)

    @abstractmethod
    def barrier(self) -> Handle: ...
    @abstractmethod
    def _all_reduce(self, tensor: Tensor, op: str) -> Handle: ...
    @abstractmethod
    def _all_gather(self, tensor: Tensor, out: Tensor | None) -> Handle: ...
    @abstractmethod
    def _all_to_all(self, tensor: Tensor, sends: list[int], receives: list[int], out: Tensor | None) -> Handle: ...
    @abstractmethod
    def _reduce_scatter(self, flat: Tensor) -> Handle: ...
    @abstractmethod
    def _broadcast(self, tensor: Tensor, root: int) -> Handle: ...
    @abstractmethod
    def _send(self, tensor: Tensor, to: int, tag: int) -> Handle: ...
    @abstractmethod
    def _receive(self, tensor: Tensor, source: int, tag: int) -> Handle: ...


def sum_in_order(blocks: Sequence[Tensor]) -> Tensor:
    """Return the sum in the order given, as both engines compute it where this library fixes the order."""
    first, *rest = blocks
    total = first.clone()
    for block in rest:
        total += block
    return total
