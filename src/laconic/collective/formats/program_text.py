"""Programs as text for people: step by step, who sends what to whom."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from laconic.collective.program import REDUCE, Program


def to_text(program: Program) -> str:
    """Return a program as text: a line for each step, in which `0→1 +3,4` says that rank 0 sends chunks 3 and 4 to rank
    1, which adds them; without `+` they are copied."""
    what = program.relation
    equal = len(set(program.shares.tolist())) == 1
    size = (
        f"each {program.shares[0]:.4g} of a vector"
        if equal
        else f"{program.shares.min():.4g} to {program.shares.max():.4g} of a vector each"
    )
    lines = [
        f"{program.name}: {what.name} of {what.size} ranks",
        f"{program.chunks} chunks, {size}; {program.steps} steps, {len(program.sends)} sends; a rank sends at most "
        f"{program.sent_shares.max():.4g} of its vector",
    ]
    table, bounds = program.sends.table.tolist(), program.bounds.tolist()
    wide = len(str(max(program.steps - 1, 0)))
    for step, (begin, end) in enumerate(pairwise(bounds)):
        messages: dict[tuple[int, int, int], list[int]] = {}
        for _, source, destination, chunk, op in table[begin:end]:
            messages.setdefault((source, destination, op), []).append(chunk)
        told = (f"{a}→{b} {'+' if op == REDUCE else ''}{_ranges(chunks)}" for (a, b, op), chunks in messages.items())
        lines.append(f"step {step:>{wide}}  " + "  ".join(told))
    return "\n".join(lines) + "\n"


def _ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers with neighbours joined, as in `0-3,7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)
