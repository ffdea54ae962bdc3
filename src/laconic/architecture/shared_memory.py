"""The shared-memory architecture: the parameters of all workers of one host are the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from laconic.architecture.allreduce import AllReduce
from laconic.architecture.base import Architecture
from laconic.registry import technique
from laconic.worker import Communication, Meets, Request

_EVERYONE = AllReduce()


@technique("shared", aliases=["shared_memory"], paper="Recht, Re, Wright, Niu, NIPS 2011")
@dataclass(frozen=True)
class Shared(Architecture):
    """Processes of one host keep their parameters in one memory: nothing is sent, since all see every write.

    What all must agree on nevertheless, such as the buffers' mean at the end, uses an all-reduce.
    """

    offers: ClassVar[tuple[str, ...]] = ("shared",)
    shares: ClassVar[bool] = True
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"compression": ("none",)}

    def carry(self, request: Request, transport: Any) -> Communication[Any]:
        return _EVERYONE.carry(request, transport)

    def sent_bytes(self, payload_bytes: float, size: int, meets: Meets = "reduce") -> float:
        return 0.0
