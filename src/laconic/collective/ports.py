"""Sends put into steps so that no rank sends, or receives, more than one chunk in a step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from laconic.collective.program import Program, Sends


def one_port(program: Program) -> Program:
    """Return the program with its sends in the earliest steps in which both ends are free, taken in their order.

    A send follows all that wrote its chunk at either end, so that sums are made in the same order; what it overwrites
    has been sent before, or is sent in the same step.
    """
    table = program.sends.table
    table[:, 0] = _earliest(map(tuple, table[:, 1:4].tolist()))
    return Program(program.name, program.relation, Sends.of(table), program.shares)


def _earliest(sends: Iterable[tuple[int, int, int]]) -> np.ndarray:
    """Return the step of each send (source, destination, chunk)."""
    written: dict[tuple[int, int], int] = {}
    read: dict[tuple[int, int], int] = {}
    sending: dict[int, set[int]] = {}
    receiving: dict[int, set[int]] = {}
    found = []
    for source, destination, chunk in sends:
        step = max(written.get((source, chunk), -1), written.get((destination, chunk), -1)) + 1
        step = max(step, read.get((destination, chunk), 0))
        out, into = sending.setdefault(source, set()), receiving.setdefault(destination, set())
        while step in out or step in into:
            step += 1
        out.add(step)
        into.add(step)
        written[destination, chunk] = step
        read[source, chunk] = max(step, read.get((source, chunk), 0))
        found.append(step)
    return np.asarray(found, dtype=np.int64)
