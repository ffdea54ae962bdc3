"""Symmetries of a wiring and a collective: orders of the ranks that change neither.

A solution that is the same under all of them is found by choosing for one of every class of choices alone. Groups are
such that no order but the first keeps any rank at its place: a chunk that stays while its ways are mirrored could not
arrive once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.collective.relation import Relation
from laconic.collective.synthesis.wiring import Wiring
from laconic.errors import LaconicError

Integers = NDArray[np.int64]
Order = tuple[int, ...]

_TRIED = 24
"""How many symmetries that move rank 0 to the same place are looked at."""


@dataclass(frozen=True, eq=False)
class Symmetry:
    """One symmetry: where it moves each rank, each way and each chunk."""

    ranks: Integers
    ways: Integers
    chunks: Integers


def symmetries(wiring: Wiring, relation: Relation) -> list[Symmetry]:
    """Return a group of symmetries of both, as large as is found by adding one after another."""
    group = {tuple(range(wiring.size))}
    for order in _candidates(wiring):
        if order in group or symmetry(wiring, relation, order) is None:
            continue
        larger = _closed(group | {order}, wiring.size)
        if larger is not None and all(symmetry(wiring, relation, one) is not None for one in larger):
            group = larger
    return _all(wiring, relation, group)


def rotations(wiring: Wiring, relation: Relation, turns: Iterable[tuple[int, int]]) -> list[Symmetry]:
    """Return the group of turns (offset, ranks): within each group of so many neighbouring ranks, every rank is moved
    by so many places. Turns that are no symmetries are refused."""
    group = {tuple(range(wiring.size))}
    for offset, ranks in turns:
        if ranks < 1 or wiring.size % ranks:
            raise LaconicError(f"{wiring.size} ranks are no groups of {ranks}")
        order = turned(wiring.size, offset, ranks)
        if symmetry(wiring, relation, order) is None:
            raise LaconicError(
                f"turning groups of {ranks} ranks by {offset} changes the links or what the {relation.name} asks for"
            )
        larger = _closed(group | {order}, wiring.size)
        if larger is None:
            raise LaconicError(f"the turns {list(turns)} together leave some rank at its place")
        group = larger
    return _all(wiring, relation, group)


def turned(size: int, offset: int, ranks: int) -> Order:
    """Return where a turn moves each rank."""
    return tuple(rank // ranks * ranks + (rank % ranks + offset) % ranks for rank in range(size))


def symmetry(wiring: Wiring, relation: Relation, order: Sequence[int]) -> Symmetry | None:
    """Return what an order of the ranks does to ways and chunks, if it changes neither wiring nor relation."""
    ranks = np.asarray(order)
    moved = [wiring.number.get((int(ranks[a]), int(ranks[b])), -1) for a, b in wiring.ends]
    ways = np.asarray(moved, dtype=np.int64)
    if (ways < 0).any() or not np.array_equal(wiring.latency_seconds[ways], wiring.latency_seconds):
        return None
    limits = {frozenset(members.tolist()): rate for members, rate in wiring.limits}
    if any(limits.get(frozenset(ways[members].tolist())) != rate for members, rate in wiring.limits):
        return None
    chunks = _moved_chunks(relation, ranks)
    return None if chunks is None else Symmetry(ranks, ways, chunks)


def classes(images: Sequence[Integers]) -> Integers:
    """Return for each of so many things the first of its class, given where each symmetry of a group moves it."""
    found: Integers = np.min(np.stack(images), axis=0)
    return found


def _moved_chunks(relation: Relation, ranks: Integers) -> Integers | None:
    """Return where chunks go: the k-th of those that are asked the same goes to the k-th of those that are asked that
    of the moved ranks."""
    asked: list[tuple[list[int], list[int]]] = [([], []) for _ in range(relation.chunks)]
    for which, places in enumerate((relation.before, relation.after)):
        for rank, chunk in zip(*np.divmod(places, relation.chunks), strict=True):
            asked[chunk][which].append(int(rank))
    alike: dict[tuple[Order, Order], list[int]] = {}
    for chunk, (held, wanted) in enumerate(asked):
        alike.setdefault((tuple(held), tuple(wanted)), []).append(chunk)
    moved = np.empty(relation.chunks, dtype=np.int64)
    for (before, after), chunks in alike.items():
        image = tuple(sorted(ranks[list(before)].tolist())), tuple(sorted(ranks[list(after)].tolist()))
        if len(alike.get(image, [])) != len(chunks):
            return None
        moved[chunks] = alike[image]
    return moved


def _closed(orders: set[Order], size: int) -> set[Order] | None:
    """Return the group that these generate, or none where one of it keeps a rank at its place."""
    group = set(orders)
    fresh = set(orders)
    first = tuple(range(size))
    while fresh:
        found = {tuple(a[b[rank]] for rank in range(size)) for a in fresh for b in group}
        found |= {tuple(b[a[rank]] for rank in range(size)) for a in fresh for b in group}
        fresh = found - group
        group |= fresh
        if len(group) > size or any(any(a == b for a, b in zip(g, first, strict=True)) for g in group if g != first):
            return None
    return group


def _all(wiring: Wiring, relation: Relation, group: Iterable[Order]) -> list[Symmetry]:
    found = (symmetry(wiring, relation, order) for order in sorted(group))
    return [one for one in found if one is not None]


def _candidates(wiring: Wiring) -> Iterator[Order]:
    """Yield orders that keep links, their rates and latencies, of each place of rank 0 some, turns first."""
    size = wiring.size
    kind = np.full((size, size), -1)
    kinds: dict[tuple[float, float], int] = {}
    facts = zip(wiring.ends.tolist(), wiring.rates.tolist(), wiring.latency_seconds.tolist(), strict=True)
    for (a, b), rate, latency in facts:
        kind[a, b] = kinds.setdefault((rate, latency), len(kinds))

    def extended(places: list[int]) -> Iterator[Order]:
        rank = len(places)
        if rank == size:
            yield tuple(places)
            return
        for turn in range(size):
            to = (rank + places[0] + turn) % size
            if to in places:
                continue
            same = all(kind[rank, k] == kind[to, at] and kind[k, rank] == kind[at, to] for k, at in enumerate(places))
            if same:
                yield from extended([*places, to])

    for start in range(1, size):
        for _, order in zip(range(_TRIED), extended([start]), strict=False):
            yield order
