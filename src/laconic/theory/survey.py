"""Every method's guarantee for one question: the survey's convergence tables (IV and V) with numbers in them."""

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
    """One method's answer. Rounds, period, bytes and seconds are for the given steps; `steps_to_epsilon` is per worker.

    Rounds are the table's order with constant 1; `proven_period` is the longest period with the paper's own constants.
    Where `order_only`, `steps_to_epsilon` is an order too. A method that cannot be applied says why in `refused`.
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
    """A line of Table IV: a method that averages from time to time."""

    technique: str
    method: str
    assumes: str
    measures: Measure
    rate: str
    rounds: Callable[[int, int], float]
    period: Callable[[Question], int] | None
    steps: Callable[[Question], int] | None
    order_only: bool = False

    def answer(self, question: Question) -> Row:
        """Return the method's numbers for a question, or why it does not apply."""
        row = Row(self.technique, self.method, "averaging", self.assumes, self.measures, self.rate)
        try:
            proven = None if self.period is None else self.period(question)
            steps = None if self.steps is None else self.steps(question)
            rounds = max(
                1, min(question.iterations, math.ceil(self.rounds(question.workers, question.iterations) - 1e-9))
            )
        except LaconicError as refusal:
            return replace(row, refused=str(refusal))
        return replace(
            row,
            rounds=rounds,
            period=question.iterations / rounds,
            proven_period=proven,
            steps_to_epsilon=steps,
            order_only=self.order_only,
            bytes=None if question.model_bytes is None else rounds * allreduce_bytes(question),
            seconds=synchronous_seconds(question, rounds),
        )


@dataclass(frozen=True)
class Asynchronous:
    """A line of Table V: a method in which every gradient is a message and no worker waits."""

    technique: str
    method: str
    assumes: Callable[[Question], str]
    measures: Callable[[Question], Measure]
    rate: str
    updates: Callable[[Question], float]

    def answer(self, question: Question) -> Row:
        """Return the method's numbers for a question, or why it does not apply."""
        row = Row(
            self.technique, self.method, "asynchronous", self.assumes(question), self.measures(question), self.rate
        )
        try:
            steps = math.ceil(self.updates(question) / question.workers)
        except LaconicError as refusal:
            return replace(row, refused=str(refusal))
        return replace(
            row,
            rounds=question.iterations,
            period=1.0,
            steps_to_epsilon=steps,
            order_only=True,
            bytes=None if question.model_bytes is None else question.iterations * question.model_bytes,
            seconds=asynchronous_seconds(question),
        )


def allreduce_bytes(question: Question) -> float:
    """Return the bytes that a worker sends in one ring all-reduce of the model."""
    return 2 * (question.workers - 1) / question.workers * (question.model_bytes or 0.0)


def synchronous_seconds(question: Question, rounds: int) -> float | None:
    """Return the seconds when all wait for the slowest worker, with those of the rounds; None if unknown."""
    if question.step_seconds is None or question.round_seconds is None:
        return None
    return question.iterations * question.step_seconds / min(question.speeds) + rounds * question.round_seconds


def asynchronous_seconds(question: Question) -> float | None:
    """Return the seconds for as many gradients when each worker computes and communicates at its own pace."""
    if question.step_seconds is None or question.round_seconds is None:
        return None
    if not question.step_seconds + question.round_seconds:
        return 0.0
    pace = sum(1 / (question.step_seconds / speed + question.round_seconds) for speed in question.speeds)
    return question.iterations * question.workers / pace


def survey(question: Question) -> list[Row]:
    """Return all methods in the tables' order; one that does not apply is listed with the reason."""
    return [line.answer(question) for line in (*AVERAGING, *ASYNCHRONOUS)]


def _k_avg_period(question: Question) -> int:
    rate = zhou_cong.best_rate(question.problem, workers=question.workers, period=1, averagings=question.iterations)
    return zhou_cong.best_period(question.problem, workers=question.workers, steps=question.iterations, rate=rate)


def _period(longest: Callable[..., int]) -> Callable[[Question], int]:
    return lambda question: longest(question.problem, workers=question.workers, iterations=question.iterations)


def _steps(iterations_to: Callable[..., int]) -> Callable[[Question], int]:
    return lambda question: iterations_to(question.epsilon, question.problem, workers=question.workers)


def _stich_steps(question: Question) -> int:
    period = stich.largest_period(question.problem, workers=question.workers, iterations=question.iterations)
    return stich.iterations_to(question.epsilon, question.problem, workers=question.workers, period=period)


def _k_avg_steps(question: Question) -> int:
    return zhou_cong.iterations_to(
        question.epsilon, question.problem, workers=question.workers, period=_k_avg_period(question)
    )


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
        "theory_stich_karimireddy_2020", "asynchronous SGD", lambda q: q.curvature, lambda q: q.measure,
        "σ²/ε² + τmax/ε",
        lambda q: stich_karimireddy.bound(
            q.problem, epsilon=q.epsilon, tau_max=q.tau_max, curvature=q.curvature
        ).total,
    ),
    Asynchronous(
        "theory_aviv_2021", "… rate by cumulated delays", lambda q: "convex", lambda q: "f - f*",
        "σ²/ε² + τavg/ε",
        lambda q: aviv.bound(
            q.problem, epsilon=q.epsilon, tau_avg=q.tau_avg,
            curvature="strongly convex" if q.curvature == "strongly convex" else "convex",
        ).total,
    ),
    Asynchronous(
        "theory_cohen_2021", "picky SGD", lambda q: "non-convex", lambda q: "|grad f|^2", "σ²/ε² + τavg/ε",
        lambda q: cohen.bound(q.problem, epsilon=math.sqrt(q.epsilon), tau_avg=q.tau_avg).total,
    ),
    Asynchronous(
        "theory_koloskova_2022", "… constant rate", lambda q: "non-convex", lambda q: "|grad f|^2",
        "σ²/ε² + sqrt(τmax τavg)/ε",
        lambda q: koloskova.bound(
            q.problem, epsilon=q.epsilon, tau_max=q.tau_max, tau_avg=q.tau_avg, rule="constant"
        ).total,
    ),
    Asynchronous(
        "theory_koloskova_2022", "… rate by delay", lambda q: "non-convex", lambda q: "|grad f|^2",
        "σ²/ε² + τavg/ε",
        lambda q: koloskova.bound(
            q.problem, epsilon=q.epsilon, tau_max=q.tau_max, tau_avg=q.tau_avg
        ).total,
    ),
    Asynchronous(
        "theory_mishchenko_2022", "… rate by delay", lambda q: q.curvature, lambda q: q.measure,
        "σ²/ε² + N/ε",
        lambda q: mishchenko.bound(
            q.problem, epsilon=q.epsilon, workers=q.workers, curvature=q.curvature
        ).total,
    ),
)  # fmt: skip
