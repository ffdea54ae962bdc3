"""The gossip architecture: workers send to their neighbours only, without a server or a collective."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from laconic.architecture.allreduce import AllReduce
from laconic.architecture.base import Architecture
from laconic.errors import LaconicError
from laconic.registry import technique
from laconic.topology.base import Topology
from laconic.worker import Communication, Gather, GatherRagged, Group, Meets, Reduce, Request, Swap

_EVERYONE = AllReduce()


@technique("gossip", aliases=["p2p", "decentralized"], paper="Boyd et al., IEEE Trans. Information Theory 2006")
@dataclass(frozen=True)
class Gossip(Architecture):
    """Send to neighbours only, point to point, along the sentence's topology: what a worker sends does not grow with N,
    the number of workers.

    There is one message per neighbour and data type. What all workers must agree on nevertheless, as at the end of a
    phase, uses an all-reduce.
    """

    offers: ClassVar[tuple[str, ...]] = ("mix",)
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"topology": ()}
    prefers: ClassVar[Mapping[str, str]] = {"sync": "dpsgd", "topology": "ring"}
    carries: ClassVar[tuple[type, ...] | None] = (Reduce, Gather, GatherRagged, Swap)
    topology: Topology | None = field(default=None, init=False, repr=False)

    def over(self, topology: Topology | None) -> Gossip:
        laid_out = copy.copy(self)
        object.__setattr__(laid_out, "topology", topology)
        return laid_out

    def carry(self, request: Request, group: Group) -> Communication[Any]:
        return _EVERYONE.carry(request, group)

    def swap(
        self,
        outgoing: Mapping[int, Sequence[Tensor]],
        incoming: Mapping[int, Sequence[Tensor]],
        group: Group,
        control: float = 0.0,
    ) -> Communication[Any]:
        sends = [(x, to) for to, messages in sorted(outgoing.items()) for x in messages]
        receives = [(x, source) for source, into in sorted(incoming.items()) for x in into]
        for handle in group.swap(sends, receives, control):  # noqa: UP028 (`yield from` cannot receive results)
            yield handle

    def sent_bytes(self, payload_bytes: float, size: int, meets: Meets = "reduce") -> float:
        """Return the bytes of one payload to every neighbour."""
        if self.topology is None:
            raise LaconicError("what gossip sends depends on the topology; write dpsgd / none / gossip / ring")
        return payload_bytes * self.topology.mixing(size).degree
