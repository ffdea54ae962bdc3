"""The group of a run with servers, in which workers communicate with the servers only.

Its workers may die and return one by one, so no process group can exist among them. A collective raises an error that
names the way out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor

from laconic.errors import ContractError


class ServerOnlyGroup:
    """A group that knows its members and refuses every collective and message among them."""

    def __init__(self, rank: int, ranks: tuple[int, ...]) -> None:
        self.rank, self.ranks, self.size, self.host_size = rank, ranks, len(ranks), 1
        self.remembered: dict[str, Any] = {}

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ContractError(
            "workers of a run with servers communicate with these only, not in collectives, since any of them may die "
            "and return: leave --servers out, or choose a strategy with a server, such as `asp / none / ps`"
        )

    all_reduce = all_gather = all_to_all = reduce_scatter = broadcast = send = receive = swap = run = barrier = _refuse
    measure = clock_seconds = _refuse

    def compute_alike(self, answer: Tensor, into: Tensor, compute: Callable[[], Any]) -> None:
        """Compute: a server's answer is this worker's own."""
        compute()
