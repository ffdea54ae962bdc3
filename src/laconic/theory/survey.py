"""Every method's promise for one question: the convergence tables (IV and V of the survey) with numbers in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from laconic.errors import LaconicError
from laconic.theory.delayed import aviv, cohen, koloskova, mishchenko, stich_karimireddy
from laconic.theory.local import cooperative, haddadpour, spiridonoff, stich, woodworth, yu, yu_jin, zhou_cong
from laconic.theory.question import Question
from laconic.theory.values import Measure


@dataclass(frozen=True)
class Row:
    """One method. Rounds, period, bytes and seconds are for the asked steps; `steps_to_epsilon` is per worker.

    Rounds are the table's order with constant 1; `proven_period` is the longest with the paper's own constants. Where
    `order_only`, `steps_to_epsilon` is an order too. A method that cannot be applied says why in `refused`.
    """

    technique: str
    method: str
    kind: Literal["averaging", "asynchronous"]
    assumes: str
    measures: Measure
    rate: str
    rounds: int | None = None
    period: float | None = None
    proven_period: int | None = None
    steps_to_epsilon: int | None = None
    order_only: bool = False
    bytes: float | None = None
    seconds: float | None = None
    refused: str = ""


@dataclass(frozen=True)
class Averaging:
    """A line of Table IV: averages now and then."""

    technique: str
    method: str
    assumes: str
    measures: Measure
    rate: str
    rounds: Callable[[int, int], float]
    period: Callable[[Question], int] | None
    steps: Callable[[Question], int] | None
    order_only: bool = False

    def answer(self, asked: Question) -> Row:
        row = Row(self.technique, self.method, "averaging", self.assumes, self.measures, self.rate)
        try:
            proven = None if self.period is None else self.period(asked)
            steps = None if self.steps is None else self.steps(asked)
            rounds = max(1, min(asked.iterations, math.ceil(self.rounds(asked.workers, asked.iterations) - 1e-9)))
        except LaconicError as refusal:
            return replace(row, refused=str(refusal))
        return replace(
            row,
            rounds=rounds,
            period=asked.iterations / rounds,
            proven_period=proven,
            steps_to_epsilon=steps,
            order_only=self.order_only,
            bytes=None if asked.model_bytes is None else rounds * allreduce_bytes(asked),
            seconds=synchronous_seconds(asked, rounds),
        )


@dataclass(frozen=True)
class Asynchronous:
    """A line of Table V: every gradient is a message, nobody waits."""

    technique: str
    method: str
    assumes: Callable[[Question], str]
    measures: Callable[[Question], Measure]
    rate: str
    updates: Callable[[Question], float]

    def answer(self, asked: Question) -> Row:
        row = Row(self.technique, self.method, "asynchronous", self.assumes(asked), self.measures(asked), self.rate)
        try:
            steps = math.ceil(self.updates(asked) / asked.workers)
        except LaconicError as refusal:
            return replace(row, refused=str(refusal))
        return replace(
            row,
            rounds=asked.iterations,
            period=1.0,
            steps_to_epsilon=steps,
            order_only=True,
            bytes=None if asked.model_bytes is None else asked.iterations * asked.model_bytes,
            seconds=asynchronous_seconds(asked),
        )


def allreduce_bytes(asked: Question) -> float:
    """What a worker sends to average once, by a ring."""
    return 2 * (asked.workers - 1) / asked.workers * (asked.model_bytes or 0.0)


def synchronous_seconds(asked: Question, rounds: int) -> float | None:
    """All wait for the slowest; rounds come on top."""
    if asked.step_seconds is None or asked.round_seconds is None:
        return None
    return asked.iterations * asked.step_seconds / min(asked.speeds) + rounds * asked.round_seconds


def asynchronous_seconds(asked: Question) -> float | None:
    """As many gradients in all; each worker computes and talks in turn, at its own pace."""
    if asked.step_seconds is None or asked.round_seconds is None:
        return None
    pace = sum(1 / (asked.step_seconds / speed + asked.round_seconds) for speed in asked.speeds)
    return asked.iterations * asked.workers / pace


def survey(asked: Question) -> list[Row]:
    """All methods, in the tables' order; one that does not apply is listed with why."""
    return [line.answer(asked) for line in (*AVERAGING, *ASYNCHRONOUS)]


def _k_avg_period(asked: Question) -> int:
    rate = zhou_cong.best_rate(asked.problem, workers=asked.workers, period=1, averagings=asked.iterations)
    return zhou_cong.best_period(asked.problem, workers=asked.workers, steps=asked.iterations, rate=rate)


def _period(longest: Callable[..., int]) -> Callable[[Question], int]:
    return lambda asked: longest(asked.problem, workers=asked.workers, iterations=asked.iterations)


def _steps(iterations_to: Callable[..., int]) -> Callable[[Question], int]:
    return lambda asked: iterations_to(asked.epsilon, asked.problem, workers=asked.workers)


def _stich_steps(asked: Question) -> int:
    period = stich.largest_period(asked.problem, workers=asked.workers, iterations=asked.iterations)
    return stich.iterations_to(asked.epsilon, asked.problem, workers=asked.workers, period=period)


def _k_avg_steps(asked: Question) -> int:
    return zhou_cong.iterations_to(asked.epsilon, asked.problem, workers=asked.workers, period=_k_avg_period(asked))


AVERAGING = (
    Averaging(
        "theory_zhou_cong_2018", "K-AVG", "non-convex", "|grad f|^2", "1/sqrt(NT)", zhou_cong.rounds,
        _k_avg_period, _k_avg_steps,
    ),
    Averaging(
        "theory_stich_2019", "local SGD", "strongly convex, bounded gradients", "f - f*", "G²/(NT)", stich.rounds,
        _period(stich.largest_period), _stich_steps,
    ),
    Averaging(
        "theory_yu_2019", "PR-SGD", "non-convex, bounded gradients", "|grad f|^2", "G²/sqrt(NT)", yu.rounds,
        _period(lambda *given, **named: yu.recommended(*given, **named)[1]), _steps(yu.iterations_to),
    ),
    Averaging(
        "theory_haddadpour_2019", "LUPA-SGD", "PL", "f - f*", "1/(NT)", haddadpour.rounds,
        _period(haddadpour.largest_period), _steps(haddadpour.iterations_to),
    ),
    Averaging(
        "theory_yu_jin_2019", "CR-PSGD (growing batches)", "PL", "f - f*", "1/(NT)", yu_jin.rounds,
        None, _steps(yu_jin.iterations_to),
    ),
    Averaging(
        "theory_yu_jin_2019", "CR-PSGD-Catalyst", "non-convex", "|grad f|^2", "1/sqrt(NT)", yu_jin.catalyst_rounds,
        None, None,
    ),
    Averaging(
        "theory_woodworth_2020", "local SGD", "convex", "f - f*", "1/sqrt(NT) + 1/(TR)^(1/3)", woodworth.rounds,
        None, _steps(woodworth.iterations_to), order_only=True,
    ),
    Averaging(
        "theory_spiridonoff_2021", "local SGD, growing gaps", "strongly convex", "f - f*", "1/(NT)", spiridonoff.rounds,
        None, _steps(spiridonoff.iterations_to), order_only=True,
    ),
    Averaging(
        "cooperative_sgd_bound", "cooperative SGD", "non-convex", "|grad f|^2", "1/sqrt(NT)", cooperative.rounds,
        _period(cooperative.largest_period), _steps(cooperative.iterations_to),
    ),
)  # fmt: skip

ASYNCHRONOUS = (
    Asynchronous(
        "theory_stich_karimireddy_2020", "asynchronous SGD", lambda asked: asked.curvature, lambda asked: asked.measure,
        "σ²/ε² + τmax/ε",
        lambda asked: stich_karimireddy.bound(
            asked.problem, epsilon=asked.epsilon, tau_max=asked.tau_max, curvature=asked.curvature
        ).total,
    ),
    Asynchronous(
        "theory_aviv_2021", "… rate by cumulated delays", lambda asked: "convex", lambda asked: "f - f*",
        "σ²/ε² + τavg/ε",
        lambda asked: aviv.bound(
            asked.problem, epsilon=asked.epsilon, tau_avg=asked.tau_avg,
            curvature="strongly convex" if asked.curvature == "strongly convex" else "convex",
        ).total,
    ),
    Asynchronous(
        "theory_cohen_2021", "picky SGD", lambda asked: "non-convex", lambda asked: "|grad f|^2", "σ²/ε² + τavg/ε",
        lambda asked: cohen.bound(asked.problem, epsilon=math.sqrt(asked.epsilon), tau_avg=asked.tau_avg).total,
    ),
    Asynchronous(
        "theory_koloskova_2022", "… constant rate", lambda asked: "non-convex", lambda asked: "|grad f|^2",
        "σ²/ε² + sqrt(τmax τavg)/ε",
        lambda asked: koloskova.bound(
            asked.problem, epsilon=asked.epsilon, tau_max=asked.tau_max, tau_avg=asked.tau_avg, rule="constant"
        ).total,
    ),
    Asynchronous(
        "theory_koloskova_2022", "… rate by delay", lambda asked: "non-convex", lambda asked: "|grad f|^2",
        "σ²/ε² + τavg/ε",
        lambda asked: koloskova.bound(
            asked.problem, epsilon=asked.epsilon, tau_max=asked.tau_max, tau_avg=asked.tau_avg
        ).total,
    ),
    Asynchronous(
        "theory_mishchenko_2022", "… rate by delay", lambda asked: asked.curvature, lambda asked: asked.measure,
        "σ²/ε² + N/ε",
        lambda asked: mishchenko.bound(
            asked.problem, epsilon=asked.epsilon, workers=asked.workers, curvature=asked.curvature
        ).total,
    ),
)  # fmt: skip
