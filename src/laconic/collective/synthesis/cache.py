"""Synthesised programs on disk: a solver is asked once for each graph and question.

A file holds sends, and a program is made of them again, which proves them: a file that was cut off or changed is a
program that takes other steps at worst, never a wrong one, and mostly none at all.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from laconic.collective.program import Program
from laconic.collective.relation import RELATIONS
from laconic.errors import LaconicError, WriteError
from laconic.files import make_folder, user_cache, write_text
from laconic.network.graph import Graph

_VERSION = 1
"""Of what is asked and how it is answered; another version's answers are not read."""


@dataclass(frozen=True, eq=False)
class Synthesis:
    """A program that was found for a graph.

    - `program`: its sends.
    - `method`: how it was found.
    - `bound_seconds`: what no program takes less than, as far as it was proved; of an all-reduce, that of a
      reduce-scatter and an all-gather one after the other.
    """

    program: Program
    method: str
    bound_seconds: float


def digest(graph: Graph, collective: str, nbytes: float) -> str:
    """Return what names a question: the same for equal graphs, and another if any link differs."""
    order = sorted(
        zip(graph.ends.tolist(), graph.bits_per_second.tolist(), graph.latency_seconds.tolist(), strict=True)
    )
    facts = [_VERSION, graph.size, order, collective, float(nbytes)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def read(question: str, graph: Graph, collective: str) -> Synthesis | None:
    """Return the answer to a question, if it is on disk and proves to be one."""
    try:
        found = json.loads(_path(question).read_text(encoding="utf-8"))
        relation = RELATIONS[collective](graph.size, int(found["chunks"]))
        program = Program.of(str(found["name"]), relation, [tuple(map(int, row)) for row in found["sends"]])
        return Synthesis(program, str(found["method"]), float(found["bound_seconds"]))
    except (OSError, ValueError, TypeError, KeyError, LaconicError):
        return None


def write(question: str, answer: Synthesis) -> None:
    """Keep an answer; where nothing can be written it is only found again the next time."""
    facts = {
        "name": answer.program.name,
        "chunks": answer.program.chunks,
        "sends": answer.program.sends.table.tolist(),
        "method": answer.method,
        "bound_seconds": answer.bound_seconds,
    }
    with suppress(WriteError):
        make_folder(_path(question).parent)
        write_text(_path(question), json.dumps(facts))


def _path(question: str) -> Path:
    return user_cache("collectives") / f"{question}.json"
