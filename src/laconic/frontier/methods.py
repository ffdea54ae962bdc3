"""Methods: what was trained apart from rate and seed, and what a sentence says about itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

from laconic.planner.phases import by_shares, phases_of
from laconic.planner.runs import Run, parsed
from laconic.strategy import Phases, Sentence, Strategy


@dataclass(frozen=True)
class Method:
    """A strategy under an optimizer, on so many workers."""

    sentence: str  # in full
    optimizer: str
    workers: int

    @classmethod
    def of(cls, run: Run) -> Method:
        """Return the method of a run; texts that mean the same strategy are the same method."""
        strategy = parsed(run.sentence)
        return cls(run.sentence if strategy is None else str(strategy), run.optimizer, run.workers)

    @property
    def strategy(self) -> Strategy | None:
        return parsed(self.sentence)

    @property
    def is_plain(self) -> bool:
        """Whether it is synchronous training with dense 32-bit gradients, with which all others are compared."""
        return self.strategy == parsed("bsp")

    @property
    def name(self) -> str:
        """The sentence without the words that go without saying."""
        short = self.sentence.replace(" / allreduce", "").replace("error_feedback", "ef")
        return short.replace(" / none", "").strip()

    def described(self, optimizer: str, workers: int) -> str:
        """Return the name, with optimizer and workers where they are not the usual ones of a table."""
        other = [self.optimizer] * (self.optimizer != optimizer)
        other += [f"{self.workers} worker{'s' * (self.workers > 1)}"] * (self.workers != workers)
        return f"{self.name} ({', '.join(other)})" if other else self.name


def last_sentence(strategy: Strategy | None) -> Sentence | None:
    """Return the sentence that most of a training follows: that of the last phase; None for maps and tiers."""
    if isinstance(strategy, Phases):
        return last_sentence(strategy.last)
    return strategy if isinstance(strategy, Sentence) else None


def same_on_all_rungs(method: Method, steps: int) -> tuple[object, ...]:
    """Return what makes a method of so many steps the same on another rung: its phases as shares of the steps."""
    strategy = method.strategy
    if strategy is None:
        return method.sentence, method.optimizer, method.workers
    return by_shares(strategy, steps), method.optimizer, method.workers


def with_shares(name: str, steps: int) -> str:
    """Return a method's name with the ends of its phases as shares of so many steps, which hold for any training."""
    return re.sub(r"until step (\d+)", lambda found: f"until {100 * int(found[1]) / steps:.3g} % of the steps", name)


def steps_outside(strategy: Strategy | None, steps: int) -> int:
    """Return the steps at the end that belong to no whole period, whose work is lost or evaluated unsynchronised."""
    sentence = last_sentence(strategy)
    if strategy is None or sentence is None:
        return 0
    first = sum(share for _, share in phases_of(strategy, steps)[:-1]) * steps
    return int((steps - round(first)) % sentence.sync.make().period)
