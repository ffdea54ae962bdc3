"""What a policy decided while its network learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.learned.scorer import Step
from laconic.cluster.policy import Policy
from laconic.cluster.state import Event, State


@dataclass
class Notes:
    """What is remembered while a network learns: its decisions, and the random numbers by which it explores; none: it
    takes what is best."""

    draws: np.random.Generator | None
    steps: list[Step] = field(default_factory=list)

    @staticmethod
    def of(seed: int | None) -> Notes:
        """Return notes without decisions.

        - `seed`: of the random numbers; none: there are none.
        """
        return Notes(None if seed is None else np.random.default_rng(seed))


class Noted(Policy):
    """A policy whose notes can be read when the replay is over.

    - `policy`: which decides.
    - `notes`: into which it writes.
    """

    def __init__(self, policy: Policy, notes: Notes) -> None:
        self.policy, self.notes = policy, notes

    def init(self) -> Notes:
        return self.notes

    def decide(self, state: State, events: Sequence[Event], memory: Any) -> tuple[Decision, Any]:
        return self.policy.decide(state, events, memory)
