"""Strategies with their prices, and tuned DDP, with which each of them is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from laconic.experiments.rivals.of_torch import DDP16
from laconic.planner.autotune import PAYS
from laconic.planner.certainty import step_errors
from laconic.planner.guarantee import is_sixteen_bits
from laconic.planner.preferences import Preferences
from laconic.planner.price import Pricer
from laconic.planner.risk import Training, guarantee_of, mathematics_of, risk_of
from laconic.planner.step_price import StepPrice
from laconic.planner.values import Risk
from laconic.schedule.wfbp import WFBP
from laconic.strategy import Sentence, Strategy, Word

MIB = 2**20
CAPS = (25, 5, 1)  # MiB: values of DDP's `bucket_cap_mb`; tuned DDP has the best of them
BASELINE = DDP16().sentence


@dataclass(frozen=True, eq=False)
class Candidate:
    """A strategy with its price; its guarantee and its risk are computed when they are first used."""

    strategy: Strategy
    priced: StepPrice
    amount: float
    training: Training

    @cached_property
    def mathematics(self) -> Strategy:
        """The strategy with the default schedule, with which it computes the same values."""
        return mathematics_of(self.strategy)

    @cached_property
    def guarantee(self) -> tuple[bool, str]:
        """Whether the strategy is exactly synchronous SGD, and what theory guarantees of it."""
        return guarantee_of(self.mathematics)

    @cached_property
    def risk(self) -> Risk | None:
        """The measured effect on the final loss, or None where it is exact or was not measured in such a training."""
        return None if self.guarantee[0] else risk_of(self.mathematics, self.training)

    @property
    def is_unknown(self) -> bool:
        """Whether nobody has measured what it does to the loss of such a training."""
        return not self.guarantee[0] and not self.is_sixteen_bits and self.risk is None

    @property
    def is_sixteen_bits(self) -> bool:
        """Whether the strategy is synchronous SGD with gradients cast to 16 bits, as the baseline."""
        chosen = self.strategy
        return isinstance(chosen, Sentence) and chosen.sync.name == "bsp" and is_sixteen_bits(chosen.compression)

    def admitted_by(self, preferences: Preferences) -> bool:
        """Return whether the strategy is exact enough for these preferences."""
        if self.is_sixteen_bits:
            return not preferences.exact
        if self.guarantee[0]:
            return True
        return preferences.loss_budget > 0 and self.risk is not None and self.risk.high - 1 <= preferences.loss_budget


def candidates_of(
    pricer: Pricer, asked: Iterable[Strategy], preferences: Preferences, progress: Callable[[int], None] | None
) -> list[Candidate]:
    found: dict[Strategy, Candidate] = {}
    deployment = pricer.deployment
    for strategy in asked:
        if strategy not in found:
            priced = pricer.price(strategy)
            found[strategy] = Candidate(strategy, priced, preferences.amount(deployment, priced), deployment.training)
            if progress is not None:
                progress(len(found))
    return list(found.values())


@dataclass(frozen=True)
class Baseline:
    """Tuned DDP with 16-bit gradients, with which every strategy is compared; `cap` is its bucket size in MiB."""

    candidate: Candidate
    cap: int

    @property
    def text(self) -> str:
        return f"{DDP16.name}(bucket_cap_mb={self.cap})"

    @property
    def own(self) -> Strategy:
        """The same in laconic's own words, with which checkpoints and the ledger work."""
        sentence = self.candidate.strategy
        assert isinstance(sentence, Sentence)
        return sentence.but(Word.of(WFBP(self.cap * MIB)))


def tuned_ddp(pricer: Pricer, preferences: Preferences) -> Baseline:
    """Return DDP with 16-bit gradients in the best of its usual bucket sizes."""
    sentence = Strategy.parse(BASELINE)
    assert isinstance(sentence, Sentence)
    tried = {cap: pricer.ddp(sentence.chain, cap * MIB) for cap in CAPS}
    cap = min(tried, key=lambda cap: tried[cap].seconds)
    deployment = pricer.deployment
    return Baseline(
        Candidate(sentence, tried[cap], preferences.amount(deployment, tried[cap]), deployment.training),
        cap,
    )


def gain_over(candidate: Candidate, base: Baseline, preferences: Preferences) -> tuple[float, float]:
    """Return the range of the candidate's gain over the baseline: of time by the errors that were measured.

    Bytes are exact. A gain that is too small to be worth a change is none.
    """
    gain = base.candidate.amount / candidate.amount if candidate.amount else float("inf")
    if gain < PAYS:
        return 0.0, gain
    low, high = (1.0, 1.0) if preferences.objective == "bytes" else step_errors(candidate.strategy)
    return gain / high, gain / low
