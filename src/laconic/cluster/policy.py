"""The interface of a policy: a frozen class with explicit memory, the same for a virtual driver and for a real one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from laconic.cluster.decision import Decision
from laconic.cluster.state import Event, State
from laconic.knobs import Technique


class Policy(Technique):
    """Decides who runs where. Its knobs are its fields; what it remembers is handed to it and returned by it."""

    axis: ClassVar[str] = "cluster"

    @property
    def every(self) -> float | None:
        """The seconds between decisions, where it decides in rounds, at multiples of that; otherwise at every event."""
        return None

    def init(self) -> Any:
        """Return what the policy remembers at the beginning."""
        return None

    @abstractmethod
    def decide(self, state: State, events: Sequence[Event], memory: Any) -> tuple[Decision, Any]:
        """Return the whole allocation that is wanted, and what to remember.

        - `state`: the cluster now.
        - `events`: what happened since the last decision.
        - `memory`: what the last decision returned, which the policy owns: it may change it.
        """
