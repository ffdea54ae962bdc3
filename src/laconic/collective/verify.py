"""The verifier: whether sends do what a relation says, however the messages of a step arrive.

What a rank holds of a chunk is the set of ranks whose contributions are summed there, or it is *undefined*: nothing was
there, a contribution was added twice, or the result depends on the order in which the messages of one step arrive.
Nothing can be subtracted, so what is undefined stays so until it is overwritten, and a set grows only by disjoint sets.
Therefore a program is right in every order of arrival exactly if, at the end, no place that the relation names is
undefined or incomplete. Sets are bits, and a step is a few operations on arrays: a ring of 1,024 ranks takes seconds.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from laconic.collective.relation import Relation
from laconic.collective.sends import REDUCE, Integers, Sends
from laconic.errors import ProgramError

Bits = NDArray[np.uint64]


def verify(name: str, relation: Relation, sends: Sends) -> None:
    """Raise `ProgramError` unless the sends do what the relation says, naming a rank and a chunk for which they do
    not."""
    _check_ranges(name, relation, sends)
    places, holdings = _run(relation, sends)
    after = np.searchsorted(places, relation.after)
    wrong = holdings.undefined[after] | (
        holdings.bits[after] != _whole(relation)[relation.after % relation.chunks]
    ).any(1)
    if wrong.any():
        _refuse(name, relation, holdings, int(after[wrong][0]), int(relation.after[wrong][0]))


class _Holdings:
    """What is held at each place: a set of contributions as bits, and whether it is undefined, since which step."""

    def __init__(self, relation: Relation, places: Integers) -> None:
        words = -(-int(relation.contributors.max()) // 64)
        self.bits: Bits = np.zeros((len(places), words), dtype=np.uint64)
        self.undefined = np.ones(len(places), dtype=bool)
        self.since = np.full(len(places), -1)
        own = np.searchsorted(places, relation.before)
        number = _numbers(relation)
        self.bits[own, number // 64] = np.uint64(1) << (number % 64).astype(np.uint64)
        self.undefined[own] = False

    def write(self, step: int, sources: Integers, destinations: Integers, reduces: NDArray[np.bool_]) -> None:
        """Carry out the sends of one step, all of which read what was there before."""
        sent, unsure = self.bits[sources], self.undefined[sources]
        order = np.argsort(destinations, kind="stable")
        places = destinations[order]
        new = np.concatenate([[True], places[1:] != places[:-1]])
        if new.all():
            self._write_once(step, destinations, sent, unsure, reduces, again=False)
            return
        first = np.flatnonzero(new)
        turn = np.arange(len(places)) - first[np.cumsum(new) - 1]
        for k in range(int(turn.max()) + 1):
            rows = order[turn == k]
            self._write_once(step, destinations[rows], sent[rows], unsure[rows], reduces[rows], again=k > 0)
        mixed = np.minimum.reduceat(reduces[order], first) != np.maximum.reduceat(reduces[order], first)
        self._spoil(step, places[first][mixed])

    def _write_once(
        self,
        step: int,
        at: Integers,
        sent: Bits,
        unsure: NDArray[np.bool_],
        reduces: NDArray[np.bool_],
        again: bool,
    ) -> None:
        """Write once to each of these places; `again`: they were written in this step before."""
        if not again and not reduces.any():
            self.bits[at], self.undefined[at] = sent, unsure
        else:
            here, unsure_here = self.bits[at], self.undefined[at]
            summed = ~(here & sent).any(1) & ~unsure_here
            copied = (here == sent).all(1) & ~unsure_here if again else np.ones(len(at), dtype=bool)
            unsure = unsure | ~np.where(reduces, summed, copied)
            self.bits[at] = np.where(reduces[:, None], here | sent, sent)
            self.undefined[at] = unsure
        if unsure.any():
            self._spoil(step, at[unsure])

    def _spoil(self, step: int, at: Integers) -> None:
        self.undefined[at] = True
        self.since[at] = step


def _run(relation: Relation, sends: Sends) -> tuple[Integers, _Holdings]:
    """Return the places that anything touches, and what they hold after the last step."""
    chunks = relation.chunks
    sources, destinations = sends.source * chunks + sends.chunk, sends.destination * chunks + sends.chunk
    named = [relation.before, relation.after, sources, destinations]
    if relation.size * chunks <= sum(map(len, named)):
        places = np.arange(relation.size * chunks)
    else:  # an all-to-all has more chunks than most ranks ever see
        places = np.unique(np.concatenate(named))
    holdings = _Holdings(relation, places)
    sources, destinations = np.searchsorted(places, sources), np.searchsorted(places, destinations)
    bounds = [*np.flatnonzero(np.diff(sends.step, prepend=-1)), len(sends)]
    for step, (begin, end) in enumerate(pairwise(bounds)):
        holdings.write(step, sources[begin:end], destinations[begin:end], sends.op[begin:end] == REDUCE)
    return places, holdings


def _numbers(relation: Relation) -> Integers:
    """Return the number of each contribution among those to its chunk, by rank."""
    chunk = relation.before % relation.chunks
    order = np.argsort(chunk, kind="stable")
    starts = np.concatenate([[0], np.cumsum(relation.contributors)[:-1]])
    numbers = np.empty(len(chunk), dtype=np.int64)
    numbers[order] = np.arange(len(chunk)) - starts[chunk[order]]
    return numbers


def _whole(relation: Relation) -> Bits:
    """Return the set of all contributions, by chunk."""
    words = -(-int(relation.contributors.max()) // 64)
    left = np.clip(relation.contributors[:, None] - 64 * np.arange(words), 0, 64).astype(np.uint64)
    ones = (np.uint64(1) << np.minimum(left, 63)) - np.uint64(1)
    return np.where(left == 64, ~np.uint64(0), ones)


def _check_ranges(name: str, relation: Relation, sends: Sends) -> None:
    for what, values, limit in (
        ("rank", sends.source, relation.size),
        ("rank", sends.destination, relation.size),
        ("chunk", sends.chunk, relation.chunks),
        ("operation", sends.op, 2),
    ):
        if len(values) and (values.min() < 0 or values.max() >= limit):
            raise ProgramError(f"{name} sends with {what} {values.max()}, and there are {limit}, counted from 0")
    if (sends.source == sends.destination).any():
        row = int(np.flatnonzero(sends.source == sends.destination)[0])
        raise ProgramError(f"in step {sends.step[row]} of {name} rank {sends.source[row]} sends to itself")


def _refuse(name: str, relation: Relation, holdings: _Holdings, at: int, place: int) -> None:
    rank, chunk = divmod(place, relation.chunks)
    opening = f"{name} is no {relation.name} of {relation.size} ranks: rank {rank}"
    if holdings.undefined[at]:
        since = int(holdings.since[at])
        if since < 0:
            raise ProgramError(f"{opening} never gets chunk {chunk}")
        raise ProgramError(
            f"{opening} holds something undefined as chunk {chunk} since step {since}: something was sent before it "
            "was there, a contribution was added twice, or two messages of one step write the same chunk"
        )
    contributors = relation.before[relation.before % relation.chunks == chunk] // relation.chunks
    there = [bool(holdings.bits[at, k // 64] >> np.uint64(k % 64) & np.uint64(1)) for k in range(len(contributors))]
    missing = [str(who) for who, is_there in zip(contributors.tolist(), there, strict=True) if not is_there]
    raise ProgramError(
        f"{opening} ends with a sum of chunk {chunk} that lacks the contributions of {len(missing)} ranks: "
        f"{', '.join(missing[:8])}{' and others' if len(missing) > 8 else ''}"
    )
