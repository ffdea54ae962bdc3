"""Gossip: no server and no ring of everybody, only neighbours."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from laconic.architecture.allreduce import AllReduce
from laconic.architecture.base import Architecture, Carrying
from laconic.errors import LaconicError
from laconic.registry import technique
from laconic.topology.base import Topology
from laconic.worker import Gather, GatherRagged, Group, Meets, Reduce, Request, Swap

_EVERYONE = AllReduce()


@technique("gossip", aliases=["p2p", "decentralized"], paper="Boyd et al., IEEE Trans. Information Theory 2006")
@dataclass(frozen=True)
class Gossip(Architecture):
    """Tell neighbours alone, point to point, along the sentence's topology: what a worker sends does not grow with N.

    One message per neighbour and data type. What everybody must agree on all the same, as at the end of a phase, goes
    by all-reduce.
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

    def carry(self, request: Request, group: Group) -> Carrying:
        return _EVERYONE.carry(request, group)

    def swap(
        self,
        told: Mapping[int, Sequence[Tensor]],
        heard: Mapping[int, Sequence[Tensor]],
        group: Group,
        control: float = 0.0,
    ) -> Carrying:
        sending = [group.send(x, to, control=control) for to, messages in sorted(told.items()) for x in messages]
        coming = [group.receive(x, source, control=control) for source, into in sorted(heard.items()) for x in into]
        for handle in (*coming, *sending):  # noqa: UP028 (each is answered, which a tuple cannot hear)
            yield handle

    def sent_bytes(self, payload_bytes: float, size: int, meets: Meets = "reduce") -> float:
        """To every neighbour once."""
        if self.topology is None:
            raise LaconicError("what gossip sends depends on the topology; write dpsgd / none / gossip / ring")
        return payload_bytes * self.topology.mixing(size).degree
