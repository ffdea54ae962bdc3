"""The group of a run with servers: everybody is there, nobody is joined.

Its workers may die and come back one by one, so no process group can exist among them. Who asks for a collective is
told so, with the way out.
"""

from __future__ import annotations

from typing import NoReturn

from laconic.errors import ContractError


class ServerOnlyGroup:
    """Knows its members; refuses to let them meet."""

    def __init__(self, rank: int, ranks: tuple[int, ...]) -> None:
        self.rank, self.ranks, self.size = rank, ranks, len(ranks)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ContractError(
            "workers of a run with servers talk to these alone, not in collectives, since any of them may die and come "
            "back: leave --servers out, or choose a strategy with a server, such as `asp / none / ps`"
        )

    all_reduce = all_gather = all_to_all = reduce_scatter = broadcast = send = receive = barrier = _refuse
