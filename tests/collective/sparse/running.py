"""Communications of virtual workers: what each ends with, and the bytes that its ledger has counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import laconic
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete
from laconic.worker import Communication, Group, Kind


@dataclass(frozen=True)
class Ended:
    """What one worker ends with.

    - `result`: what its communication returned.
    - `payload`, `control`: the bytes that it sent.
    - `seconds`: its clock.
    """

    result: Any
    payload: float
    control: float
    seconds: float


def run(communicate: Callable[[Group], Communication[Any]], size: int, network: Network | None = None) -> list[Ended]:
    """Let so many virtual workers communicate, and return what each ends with."""

    def one() -> Ended:
        worker = connect()
        exchange: Any = InFlight(communicate(worker.world))
        complete([exchange])
        sent = worker.ledger.sent_bytes
        return Ended(exchange.result, sent(Kind.PAYLOAD), sent(Kind.CONTROL), worker.clock_seconds())

    return list(laconic.simulate(one, size, network).results)


def vectors(supports: list[Tensor], numel: int, seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return vectors of small whole numbers, none of them zero, on these supports: their sums are exact."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for support in supports:
        x = torch.zeros(numel, dtype=dtype)
        signs = 1 - 2 * torch.randint(0, 2, (len(support),), generator=draw)
        x[support] = (signs * torch.randint(1, 9, (len(support),), generator=draw)).to(dtype)
        found.append(x)
    return found
