"""The way in: a program for any graph, by the method that its size allows, kept on disk."""

from __future__ import annotations

from collections.abc import Callable

from laconic.collective.price import price
from laconic.collective.program import Program
from laconic.collective.relation import RELATIONS, Relation
from laconic.collective.synthesis import cache
from laconic.collective.synthesis.bounds import bounds
from laconic.collective.synthesis.cache import Synthesis
from laconic.collective.synthesis.halves import halves
from laconic.collective.synthesis.known_hosts import sketch_of
from laconic.collective.synthesis.sccl import Progress, frontier
from laconic.collective.synthesis.taccl import taccl
from laconic.collective.synthesis.wiring import Wiring, wiring
from laconic.errors import LaconicError
from laconic.network.graph import Graph


def synthesised(graph: Graph, collective: str, nbytes: float) -> Program:
    """Return a program for a collective of vectors of so many bytes, found for this graph."""
    return synthesis(graph, collective, nbytes).program


def synthesis(
    graph: Graph, collective: str, nbytes: float, seconds: float = 60.0, progress: Progress = lambda line: None
) -> Synthesis:
    """Return a program for a collective on a graph, with the method that found it and the bound that it is held to.

    What was found once is read from the user's cache.

    - `collective`: its name, such as all_reduce; broadcast and reduce have rank 0 as their root.
    - `nbytes`: of a rank's vector.
    - `seconds`: for each question to the solver.
    - `progress`: is told what is asked.
    """
    if collective not in RELATIONS:
        raise LaconicError(f"there is no collective {collective!r}; write one of {', '.join(RELATIONS)}")
    question = cache.digest(graph, collective, nbytes)
    kept = cache.read(question, graph, collective)
    if kept is not None:
        return kept
    method = _method(wiring(graph))
    bound = 0.0

    def copying(on: Graph, relation: Relation) -> Program:
        nonlocal bound
        ways = wiring(on)
        bound += bounds(on, relation, ways).seconds(nbytes, float(ways.latency_seconds.min()))
        return _METHODS[method](on, relation, nbytes, seconds, progress)

    answer = Synthesis(halves(graph, collective, copying), method, bound)
    cache.write(question, answer)
    return answer


def _method(ways: Wiring) -> str:
    """Return the method for such a graph: exact where it is small, in stages where it is larger."""
    if len(ways.ends) * ways.size <= 512:
        return "sccl"
    if ways.size <= 32:
        return "taccl"
    raise LaconicError(f"{ways.size} ranks are too many for a solver, which takes up to 32; use a generator")


def _by_sccl(graph: Graph, relation: Relation, nbytes: float, seconds: float, progress: Progress) -> Program:
    """Return the schedule of the frontier that is fastest for so many bytes."""
    found = [schedule.program for schedule in frontier(graph, relation, seconds=seconds, progress=progress)]
    if not found:
        raise LaconicError(f"no schedule was found in {seconds:g} seconds a question; give more")
    return min(found, key=lambda program: price(program, nbytes, graph).seconds)


def _by_taccl(graph: Graph, relation: Relation, nbytes: float, seconds: float, progress: Progress) -> Program:
    """Return what the three stages find with the sketch that the graph suggests."""
    progress(f"routes, order and messages of a {relation.name} of {graph.size} ranks")
    return taccl(graph, relation, nbytes, sketch_of(graph, relation), seconds).program


_METHODS: dict[str, Callable[[Graph, Relation, float, float, Progress], Program]] = {
    "sccl": _by_sccl,
    "taccl": _by_taccl,
}
"""The methods by name; each returns a program that copies. A search for graphs that are too large for a solver is one
more of them, and a case of `_method`."""
