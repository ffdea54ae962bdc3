"""The architecture's contract: carry out what a compressor asks, over a group."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from typing import Any, ClassVar, Literal

from laconic.registry import Technique
from laconic.worker import Group, Handle, Request

Carrying = Generator[Handle, Any, Any]


class Architecture(Technique):
    """Whom workers tell. Steps that depend on each other are successive yields of handles."""

    axis: ClassVar[str] = "architecture"
    offers: ClassVar[tuple[str, ...]] = ("average",)
    """What sync rules may ask of it: see `Sync.talks`."""

    @abstractmethod
    def carry(self, request: Request, group: Group) -> Carrying:
        """Yield handles, receive their results, return the request's result."""

    @abstractmethod
    def sent_bytes(self, payload_bytes: float, size: int, meets: Literal["reduce", "gather"] = "reduce") -> float:
        """What one worker sends to have payloads of so many bytes meet among `size` workers."""
