"""The model that would be shipped if the training ended here, without ending it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from torch import nn, optim

import laconic
from laconic.real.connect import connect
from laconic.runtime.random_states import random_states, set_random_states
from laconic.runtime.saved_training import own_part, restore, session_of
from laconic.runtime.session import Session
from laconic.strategy import Sentence, Strategy


class Aside:
    """What one worker has sent for nothing but looking at the model, which is no part of the training's bytes."""

    def __init__(self) -> None:
        self.sent_bytes = 0.0

    @contextmanager
    def shipped(self, model: nn.Module, optimizer: optim.Optimizer) -> Iterator[None]:
        """Let the model be what `laconic.finish` makes of it, and go on afterwards as if nothing had been. All workers
        do this at the same step; what is in flight is completed, and its results are waited for where they would have
        been.

        - `model`, `optimizer`: what `laconic.distribute` returned.
        """
        session = session_of(optimizer, "checkpoint")
        if _has_met(session):
            drawn = random_states()
            yield
            set_random_states(drawn)
            return
        part: dict[str, Any] = own_part(session, model, optimizer, {})
        own = {"model": model.state_dict(), "optimizer": optimizer.base.state_dict()}  # type: ignore[attr-defined]
        part = deepcopy(part | own)
        before = connect().ledger.sent_bytes()
        laconic.finish(model, optimizer)
        yield
        restore(session, model, optimizer, part, lambda rank: part, "what was kept of this training")
        self.sent_bytes += connect().ledger.sent_bytes() - before


def can_be_looked_at(strategy: Strategy) -> bool:
    """Return whether all that a training remembers is in its workers, and the order of arrivals changes nothing: not
    where servers hold the model, or rules race."""
    if isinstance(strategy, Sentence):
        return bool(strategy.architecture.make().collective) and not strategy.sync.make().races
    return all(map(can_be_looked_at, strategy.parts_within))


def _has_met(session: Session) -> bool:
    """Return whether all workers hold what would be shipped already: gradients are averaged in every step, and nothing
    of them is late."""
    return all(tier.sync.plain and not tier.late for tier in session.arrangement.tiers)
