"""The risk of a strategy: its effect on the final loss where it was measured in trainings like the one that is planned.

Like it is a training of the same kind of model, with the same optimizer and number of workers, of a model that is not
ten times larger or smaller: gaps of language models of 3 and 11 million parameters differ by factors of two to four.
Of others nothing is inferred: what a strategy does there is unknown. The rows are
those of `runs` and, for small classifiers, of `measured/accuracy.csv`, made by `bench/accuracy.py`; docs/accuracy.md
says how far they can be trusted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from laconic.cost.from_profile import tensors_of
from laconic.errors import LaconicError, StrategyError
from laconic.experiments.student import student_gap
from laconic.language.word import Word
from laconic.planner import runs
from laconic.planner.guarantee import guarantee_of
from laconic.planner.phases import Shares, by_shares, rescaled
from laconic.planner.values import Risk
from laconic.reading import Count, Finite, Natural, NotNegative, Source
from laconic.strategy import DEFAULTS, Phases, Sentence, Strategy
from laconic.values.model_kind import Kind, model_kind
from laconic.values.profile import Profile

__all__ = ["DIVERGED", "MeasuredLoss", "MeasuredRisk", "Training", "guarantee_of", "measured_strategies", "risk_of"]

TABLE = Path(__file__).parent / "measured" / "accuracy.csv"
DIVERGED = 1000.0
"""The ratio of a strategy with which a training diverged, or ended further above `bsp` than that."""
FARTHEST = 10.0
"""How many times larger or smaller the measured model may be."""
Circumstances = tuple[Kind, str, int]
_TABLE_TASK, _TABLE_OPTIMIZER, _TABLE_PARAMETERS = "digits", "sgd", 38_282


@dataclass(frozen=True)
class Training:
    """What the effect of a strategy on the loss depends on: the model, its optimizer and the number of workers."""

    kind: Kind
    optimizer: str  # the name of its class in lower case; empty: not known
    workers: int
    parameters: int
    steps: int | None = None  # of the whole run, where phases are told by their shares of it; None: not known

    @property
    def circumstances(self) -> Circumstances:
        """What must be the same; decoupled weight decay does not make another optimizer."""
        return self.kind, self.optimizer.removesuffix("w"), self.workers


def training_of(profile: Profile, workers: int, steps: int | None = None) -> Training:
    """Return what is trained by so many workers in so many steps; the kind of model is the profile's own word, or by
    its tensors."""
    tensors = tensors_of(profile)[0]
    kind = profile.kind or model_kind(tensors)
    return Training(kind, profile.optimizer, workers, sum(spec.numel for spec in tensors), steps)


@dataclass(frozen=True)
class MeasuredLoss:
    """A row of the table: a sentence's loss over that of `bsp` at equal samples, with an interval over seeds."""

    sentence: str
    task: Literal["digits", "chars"]
    workers: Natural
    loss_ratio: NotNegative
    low: Finite
    high: Finite
    fewer_bytes: NotNegative
    rates: Count  # learning rates tried; 0: set by hand
    baseline_optimizer: str = ""


@dataclass(frozen=True)
class MeasuredRisk:
    """The risk of a strategy in a training like this one."""

    strategy: Strategy
    training: Training
    risk: Risk


@cache
def measured_losses(path: Path = TABLE) -> tuple[MeasuredLoss, ...]:
    """Return the rows of the table."""
    instead = f"make it with `python bench/accuracy.py --out {path}`"
    source = Source(path, "table of measured losses", instead)
    return tuple(source.rows(source.text(), MeasuredLoss))


def risk_of(strategy: Strategy | str, training: Training, rows: Sequence[MeasuredRisk] | None = None) -> Risk | None:
    """Return the measured risk of this very strategy in trainings like this one; None where it was not measured.

    Of several models that were measured the one of the nearest size counts, of several tasks the worse. Schedules
    change no value and are not compared; phases are compared by their shares of the steps.
    """
    chosen = mathematics_of(Strategy.parse(strategy))
    if guarantee_of(chosen)[0]:
        return Risk(1.0, 1.0, 1.0, training.workers, "any", "bsp", training.parameters)
    nearest: dict[str, tuple[float, Risk]] = {}
    known = _indexed(measured() if rows is None else tuple(rows))
    for risk in known.get((training.circumstances, by_shares(chosen, training.steps)), ()):
        far = _far(risk.parameters, training)
        if far <= math.log(FARTHEST) and (risk.task not in nearest or far < nearest[risk.task][0]):
            nearest[risk.task] = far, risk
    risks = [risk for _, risk in nearest.values()]
    return max(risks, key=lambda risk: (risk.high, risk.loss_ratio), default=None)


def measured_strategies(training: Training) -> list[Strategy]:
    """Return the strategies whose effect on the loss was measured in trainings like this one; phases with the same
    shares of its steps, but those that do not fit into so few."""
    found: dict[Strategy, None] = {}
    for row in measured():
        if row.training.circumstances == training.circumstances:
            with suppress(StrategyError):
                found[rescaled(row.strategy, row.training.steps, training.steps)] = None
    return list(found)


def measured_steps(training: Training) -> int | None:
    """Return the steps of the trainings like this one in which losses were measured, of the model of the nearest size;
    None where their number is not known."""
    known = [
        (_far(row.training.parameters, training), -row.training.steps)
        for row in measured()
        if row.training.circumstances == training.circumstances and row.training.steps is not None
    ]
    far, negative = min(known, default=(math.inf, 0))
    return -negative if far <= math.log(FARTHEST) else None


def mathematics_of(strategy: Strategy) -> Strategy:
    """Return the strategy with the default schedule: when messages are sent changes no computed value."""
    if isinstance(strategy, Phases):
        parts = tuple((mathematics_of(part), condition) for part, condition in strategy.parts)
        return Phases(parts, mathematics_of(strategy.last))
    return strategy.but(Word(DEFAULTS["schedule"])) if isinstance(strategy, Sentence) else strategy


@cache
def measured() -> tuple[MeasuredRisk, ...]:
    """Return the risks in all rows that come with the package."""
    return (*of_table(measured_losses()), *of_runs(runs.read()))


def of_table(rows: Iterable[MeasuredLoss]) -> Iterator[MeasuredRisk]:
    """Yield the risks in a table of digits: of rows whose learning rate was tuned, beside the task's usual optimizer.

    Digits are a small net of the kind `classifier`, though two of its layers are convolutions: what it says of a
    strategy was never seen to hold for a convolutional net.
    """
    for row in rows:
        if row.task == _TABLE_TASK and row.rates and row.baseline_optimizer == _TABLE_OPTIMIZER:
            training = Training("classifier", _TABLE_OPTIMIZER, row.workers, _TABLE_PARAMETERS)
            risk = Risk(row.loss_ratio, row.low, row.high, row.workers, row.task, row.sentence, _TABLE_PARAMETERS)
            yield from _parsed(row.sentence, training, risk)


def of_runs(rows: Iterable[runs.Run]) -> Iterator[MeasuredRisk]:
    """Yield the risks in reported runs: paired by seed with those of `bsp` of the same task, model and optimizer.

    One seed has no interval and yields nothing; a strategy with which a run diverged has the ratio `DIVERGED`.
    """
    groups: dict[tuple[object, ...], dict[str, dict[int, runs.Run]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row.purpose == "report" and not row.skewed:
            group = row.task, row.rung, row.kind, row.parameters, row.workers, row.optimizer, row.samples_per_step
            groups[group][row.sentence][row.seed] = row
    for sentences in groups.values():
        plain = {seed: row.final for by_seed in sentences.values() for seed, row in by_seed.items() if row.is_plain}
        for sentence, by_seed in sentences.items():
            losses = {seed: row.final for seed, row in by_seed.items() if math.isfinite(plain.get(seed, math.inf))}
            if len(losses) < 2:
                continue
            row = next(iter(by_seed.values()))
            gap = student_gap(losses, plain)
            ratio, low, high = (
                (DIVERGED,) * 3 if gap is None else (min(DIVERGED, 1 + x) for x in (gap.middle, gap.low, gap.high))
            )
            risk = Risk(ratio, low, high, row.workers, row.task, sentence, row.parameters)
            training = Training(row.kind, row.optimizer, row.workers, row.parameters, row.steps)
            yield from _parsed(sentence, training, risk)


def _parsed(sentence: str, training: Training, risk: Risk) -> Iterator[MeasuredRisk]:
    """Yield the risk if its sentence is known here: techniques of other packages may be missing."""
    try:
        chosen = mathematics_of(Strategy.parse(sentence))
    except LaconicError:
        return
    yield MeasuredRisk(chosen, training, risk)


@lru_cache(maxsize=4)
def _indexed(rows: tuple[MeasuredRisk, ...]) -> dict[tuple[Circumstances, Shares], list[Risk]]:
    found: dict[tuple[Circumstances, Shares], list[Risk]] = {}
    for row in rows:
        key = row.training.circumstances, by_shares(row.strategy, row.training.steps)
        found.setdefault(key, []).append(row.risk)
    return found


def _far(parameters: int, training: Training) -> float:
    """Return how far a model's size is from that of the one in training, as a logarithm."""
    return abs(math.log(parameters / max(1, training.parameters)))
