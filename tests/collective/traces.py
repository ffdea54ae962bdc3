"""Programs in the traced language: a ring, all pairs, and a hierarchy of rings."""

from __future__ import annotations

from laconic.collective.tracing import ChunkReference, Trace


def ring(trace: Trace) -> None:
    for chunk in range(trace.relation.chunks):
        around(trace, chunk, [(chunk + away) % trace.relation.size for away in range(trace.relation.size)])


def around(trace: Trace, chunk: int, ranks: list[int]) -> None:
    """Add a chunk up along these ranks, and send the sum round from the last."""
    here = summed_along(trace, chunk, ranks)
    for rank in ranks[:-1]:
        here = here.copy(rank)


def summed_along(trace: Trace, chunk: int, ranks: list[int]) -> ChunkReference:
    here = trace.chunk(ranks[0], chunk)
    for rank in ranks[1:]:
        here = trace.chunk(rank, chunk).reduce(here)
    return here


def all_pairs(trace: Trace) -> None:
    for chunk in range(trace.relation.size):
        others = [rank for rank in range(trace.relation.size) if rank != chunk]
        here = trace.chunk(chunk, chunk)
        for rank in others:
            here = here.reduce(trace.chunk(rank, chunk))
        for rank in others:
            here.copy(rank)


def hierarchical(trace: Trace, inside: int = 2) -> None:
    """Add up inside each host of neighbouring ranks, between the hosts, and send the sums back inside."""
    hosts = trace.relation.size // inside
    for chunk in range(trace.relation.chunks):
        owner = chunk % inside
        within = [(owner + 1 + away) % inside for away in range(inside)]
        for host in range(hosts):
            summed_along(trace, chunk, [host * inside + place for place in within])
        start = chunk // inside % hosts
        around(trace, chunk, [(start + away) % hosts * inside + owner for away in range(hosts)])
        for host in range(hosts):
            here = trace.chunk(host * inside + owner, chunk)
            for place in within[:-1]:
                here = here.copy(host * inside + place)
