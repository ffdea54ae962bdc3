"""Which strategies want which optimizer, for tests that try all there are."""

from __future__ import annotations

from laconic.strategy import Phases, Sentence, Strategy
from laconic.sync.moments import MomentRule


def needs_adam(text: str) -> bool:
    """Whether the first steps of a strategy are made on Adam's moments."""
    strategy = Strategy.parse(text)
    first = strategy.parts[0][0] if isinstance(strategy, Phases) else strategy
    return isinstance(first, Sentence) and isinstance(first.sync.make(), MomentRule)
