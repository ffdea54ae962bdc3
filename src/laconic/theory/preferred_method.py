"""The method that theory prefers for a question, and why.

All methods share the leading noise term, so that at equal numbers of gradients they differ in communication and
waiting. Only methods whose assumptions the given constants meet and whose guarantees are of the same kind are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from laconic.theory import worker_throughput as paces
from laconic.theory.local import woodworth
from laconic.theory.question import Question
from laconic.theory.survey import Row

CONSTANTS = (
    "Orders hide constants that the papers leave open; they are 1 here (marked ~), so neighbours in the table may swap."
)


def preference(question: Question, rows: Sequence[Row]) -> str:
    """Return the last line of the table: the preferred method, the reason, and how far to trust it."""
    fit = [row for row in rows if not row.refused and row.measures == question.measure]
    averaging = [row for row in fit if row.kind == "averaging" and row.rounds is not None]
    asynchronous = [row for row in fit if row.kind == "asynchronous"]
    if not fit:
        return "Theory prefers nothing here: no method's needs are met; give --gap, --distance or --mu."
    fewest_rounds = min(averaging, key=lambda row: row.rounds or 0, default=None)
    fastest_async = min(asynchronous, key=lambda row: row.steps_to_epsilon or 0, default=None)
    chosen = fewest_rounds or fastest_async
    assert chosen is not None
    why = [f"for {question.curvature} objectives it bounds {chosen.measures}"]
    if chosen is fewest_rounds:
        why.append(f"with the fewest rounds, ~{fewest_rounds.rounds:,} for {question.iterations:,} steps")
    gain = paces.asynchronous(question.speeds) / paces.minibatch(question.speeds)
    if fewest_rounds and fastest_async and fewest_rounds.seconds is not None and fastest_async.seconds is not None:
        if fastest_async.seconds < fewest_rounds.seconds:
            chosen, other = fastest_async, fewest_rounds
            why = [f"nobody waits for the slowest (gradients per second ×{gain:.3g})"]
        else:
            other = fastest_async
        why.append(f"{chosen.seconds:,.1f} s against {other.seconds:,.1f} s of {other.technique}")
    elif gain > 1.001 and fastest_async:
        why.append(
            f"but at these speeds asynchronous methods ({fastest_async.technique}) take {gain:.3g} times the gradients "
            "per second; give --step-seconds and --round-seconds to weigh both"
        )
    return f"Theory prefers {chosen.technique} ({chosen.method.lstrip('… ')}): {', '.join(why)}. {CONSTANTS}"


def remarks(question: Question, rows: Sequence[Row]) -> list[str]:
    """Return remarks that do not fit into the table."""
    found = []
    for row in rows:
        if row.technique == "theory_woodworth_2020" and row.rounds is not None:
            period = max(1, question.iterations // row.rounds)
            best = woodworth.best(question.problem, workers=question.workers, period=period, rounds=row.rounds)
            crossing = woodworth.crossover_period(question.problem, workers=question.workers, rounds=row.rounds)
            found.append(
                f"Convex, {row.rounds:,} rounds of {period:,} steps: {best} has the smallest bound; local SGD "
                f"overtakes minibatch SGD from ~{crossing:,.3g} steps a round on."
            )
    return found
