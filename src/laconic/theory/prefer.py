"""Which method theory prefers, and why.

All methods share the leading noise term, so that at equal gradients they differ in what they say and wait. Compared are
only those whose assumptions the given constants meet and whose guarantee is of the same kind.
"""

from __future__ import annotations

from collections.abc import Sequence

from laconic.theory import speeds as paces
from laconic.theory.local import woodworth
from laconic.theory.question import Question
from laconic.theory.survey import Row

CONSTANTS = (
    "Orders hide constants that the papers leave open; they are 1 here (marked ~), so neighbours in the table may swap."
)


def preference(asked: Question, rows: Sequence[Row]) -> str:
    """The last line: a name, the reason, and how far to trust it."""
    fit = [row for row in rows if not row.refused and row.measures == asked.measure]
    averaging = [row for row in fit if row.kind == "averaging" and row.rounds is not None]
    asynchronous = [row for row in fit if row.kind == "asynchronous"]
    if not fit:
        return "Theory prefers nothing here: no method's needs are met; give --gap, --distance or --mu."
    quiet = min(averaging, key=lambda row: row.rounds or 0, default=None)
    prompt = min(asynchronous, key=lambda row: row.steps_to_epsilon or 0, default=None)
    chosen = quiet or prompt
    assert chosen is not None
    why = [f"for {asked.curvature} objectives it bounds {chosen.measures}"]
    if chosen is quiet:
        why.append(f"with the fewest rounds, ~{quiet.rounds:,} for {asked.iterations:,} steps")
    gain = paces.asynchronous(asked.speeds) / paces.minibatch(asked.speeds)
    if quiet and prompt and quiet.seconds is not None and prompt.seconds is not None:
        if prompt.seconds < quiet.seconds:
            chosen, other = prompt, quiet
            why = [f"nobody waits for the slowest (gradients per second ×{gain:.3g})"]
        else:
            other = prompt
        why.append(f"{chosen.seconds:,.1f} s against {other.seconds:,.1f} s of {other.technique}")
    elif gain > 1.001 and prompt:
        why.append(
            f"but at these speeds asynchronous methods ({prompt.technique}) take {gain:.3g} times the gradients per "
            "second; give --step-seconds and --round-seconds to weigh both"
        )
    return f"Theory prefers {chosen.technique} ({chosen.method.lstrip('… ')}): {', '.join(why)}. {CONSTANTS}"


def remarks(asked: Question, rows: Sequence[Row]) -> list[str]:
    """What a table cannot say."""
    said = []
    for row in rows:
        if row.technique == "theory_woodworth_2020" and row.rounds is not None:
            period = max(1, asked.iterations // row.rounds)
            best = woodworth.best(asked.problem, workers=asked.workers, period=period, rounds=row.rounds)
            crossing = woodworth.crossover_period(asked.problem, workers=asked.workers, rounds=row.rounds)
            said.append(
                f"Convex, {row.rounds:,} rounds of {period:,} steps: {best} has the smallest bound; local SGD "
                f"overtakes minibatch SGD from ~{crossing:,.3g} steps a round on."
            )
    return said
