"""The all-to-all by which rows of tokens travel to experts and back, with the gradient's way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from laconic.parallel.message_code import MessageCode
from laconic.runtime.meeting import Meeting
from laconic.worker import Group, Worker

Direction = Literal["forward", "backward"]


@dataclass(frozen=True)
class Exchange:
    """How devices exchange rows: activations forward, and their gradients backward.

    Each row is sent to one device, and nothing else: devices know beforehand how many rows each sends to each. What
    stays on a device is not encoded.

    - `group`: the devices.
    - `codes`: how rows are encoded in each direction; what is not listed is sent as it is.
    - `seed`: of codes that draw random numbers.
    """

    worker: Worker
    group: Group
    codes: dict[Direction, MessageCode]
    seed: int = 0

    def __call__(self, rows: Tensor, sends: Sequence[int], receives: Sequence[int], name: str, step: int) -> Tensor:
        """Send so many rows to each device, in their order, and return the rows that each device sends to this one.

        - `name`, `step`: those of this exchange, the same on all devices and different from other exchanges'.
        """
        exchanged: Tensor = _Exchanged.apply(rows, self, list(sends), list(receives), name, step)  # type: ignore[no-untyped-call]
        return exchanged

    def carry(
        self, rows: Tensor, sends: list[int], receives: list[int], direction: Direction, name: str, step: int
    ) -> Tensor:
        """Exchange rows without a gradient."""
        width, code = rows.shape[1], self.codes.get(direction)
        if code is None:
            lengths, coming = ([width * count for count in counts] for counts in (sends, receives))
            return self._all_to_all(rows.contiguous().view(-1), lengths, coming).view(-1, width)
        rank, own = self.group.rank, rows.split(sends)[self.group.rank]
        sent, got = ([0 if d == rank else width * n for d, n in enumerate(counts)] for counts in (sends, receives))

        def meeting(source: int, to: int) -> Meeting:
            return Meeting(source, self.group.size, step, f"{name}/{direction}/{source}-{to}", self.seed)

        self.worker.coded("encode", code.words, [n for n in sent if n])
        messages = [
            code.encode(part[: 0 if d == rank else None], meeting(rank, d)) for d, part in enumerate(rows.split(sends))
        ]
        lengths, coming = ([code.nbytes(numel) for numel in numels] for numels in (sent, got))
        arrived = self._all_to_all(torch.cat(messages), lengths, coming).split(coming)
        self.worker.coded("decode", code.words, [n for n in got if n])
        parts = [
            own if s == rank else code.decode(message, got[s], meeting(s, rank)).view(-1, width).to(rows.dtype)
            for s, message in enumerate(arrived)
        ]
        return torch.cat(parts)

    def _all_to_all(self, flat: Tensor, sends: list[int], receives: list[int]) -> Tensor:
        """Send so many elements to each device, to one at a time: the steps of the program `pairwise`.

        gloo's own all-to-all sends to all at once, and took half as long again among four devices at 10 Mb/s
        (bench/mesh.py); NCCL's is left to arrange its messages by itself.
        """
        group, rank = self.group, self.group.rank
        if flat.is_cuda:
            received: Tensor = group.all_to_all(flat, sends, receives).wait()
            return received
        into = flat.new_empty(sum(receives))
        outgoing, incoming = flat.split(sends), into.split(receives)
        incoming[rank].copy_(outgoing[rank])
        for turn in range(1, group.size):
            to, source = (rank + turn) % group.size, (rank - turn) % group.size
            out, coming = (
                [(x, peer)] if len(x) else [] for x, peer in ((outgoing[to], to), (incoming[source], source))
            )
            for handle in group.swap(out, coming):
                handle.wait()
        return into


class _Exchanged(torch.autograd.Function):
    """Rows that travel forward, and whose gradients travel the same ways back."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, exchange: Exchange, sends: list[int], receives: list[int], name: str, step: int
    ) -> Tensor:
        ctx.back = exchange, receives, sends, "backward", name, step
        return exchange.carry(rows, sends, receives, "forward", name, step)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        exchange, *way = ctx.back
        return exchange.carry(gradients[0], *way), None, None, None, None, None
