"""Programs as JSON of ours: name, collective, ranks, chunks, shares where they differ, and sends; out and in.

Which rank holds what before and after is written only where it is not what the collective's name says. What is read is
proved, as every program.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from laconic.collective.layout import is_standard
from laconic.collective.program import Program, Sends
from laconic.collective.relation import RELATIONS, Relation
from laconic.errors import LaconicError, ProgramError
from laconic.reading import Count, Natural, NotNegative, Source

_OPERATIONS = ("copy", "reduce")


@dataclass(frozen=True)
class _Written:
    """What a file holds. `sends` are [step, source, destination, chunk, "copy" or "reduce"]; `before` and `after` give
    the chunks that each rank holds, and `pieces` of how many chunks a rank's vector consists."""

    name: str
    collective: str
    ranks: Natural
    chunks: Natural
    sends: list[tuple[Count, Count, Count, Count, str]]
    shares: list[NotNegative] | None = None
    before: list[list[Count]] | None = None
    after: list[list[Count]] | None = None
    pieces: Natural | None = None


def to_json(program: Program) -> str:
    """Return a program as JSON text, one send a line."""
    what = program.relation
    head: dict[str, object] = {
        "name": program.name,
        "collective": what.name,
        "ranks": what.size,
        "chunks": what.chunks,
    }
    if not np.array_equal(program.shares, what.shares):
        head["shares"] = program.shares.tolist()
    if not is_standard(what):
        held = (what.before, what.after)
        head["before"], head["after"] = (
            [(p[p // what.chunks == r] % what.chunks).tolist() for r in range(what.size)] for p in held
        )
        head["pieces"] = what.pieces
    rows = [json.dumps([*row[:4], _OPERATIONS[row[4]]]) for row in program.sends.table.tolist()]
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    sends = ",\n".join(f"    {row}" for row in rows)
    return "\n".join(["{", *lines, f'  "sends": [\n{sends}\n  ]' if rows else '  "sends": []', "}"]) + "\n"


def from_json(text: str, where: str | Path = "the text") -> Program:
    """Return the program of a JSON text.

    - `text`: what `to_json` has written, or a person.
    - `where`: where the text is from, for messages.
    """
    source = Source(where, "program", "write what `laconic collective show --as json` prints", ProgramError)
    held = source.value(source.json(text), _Written)
    try:
        relation = _relation(held)
        rows = [(*row[:4], _OPERATIONS.index(row[4])) for row in held.sends]
    except (LaconicError, ValueError) as error:
        raise source.refused(error) from error
    return Program(held.name, relation, Sends.of(rows), np.asarray(held.shares or (), dtype=float))


def _relation(held: _Written) -> Relation:
    given = (held.before, held.after, held.pieces)
    if given == (None, None, None):
        if held.collective not in RELATIONS:
            raise ProgramError(
                f"{held.collective} is none of {', '.join(RELATIONS)}, and `before` and `after` are missing"
            )
        return RELATIONS[held.collective](held.ranks, held.chunks)
    if held.before is None or held.after is None or held.pieces is None:
        raise ProgramError("`before`, `after` and `pieces` are given together or not at all")
    before, after = (
        np.asarray(sorted(r * held.chunks + c for r, chunks in enumerate(places) for c in set(chunks)), dtype=np.int64)
        for places in (held.before, held.after)
    )
    for places in (held.before, held.after):
        if len(places) != held.ranks or any(c >= held.chunks for chunks in places for c in chunks):
            raise ProgramError(f"`before` and `after` list chunks below {held.chunks} for each of {held.ranks} ranks")
    return Relation(held.collective, held.ranks, held.chunks, before, after, held.pieces)
