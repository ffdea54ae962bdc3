"""An interpreter that tries every order in which messages can arrive.

It shares nothing with the verifier: what a rank holds is a count of each contribution, and of garbage. A rank that
begins or ends a turn touches nothing but what is its own, so that these events change places with all others without a
difference: only orders of arrival at one rank in one turn are tried.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from laconic.collective.program import REDUCE, Sends
from laconic.collective.relation import Relation

Held = tuple[int, ...]
"""How often each rank's contribution is in a sum; the last number counts garbage."""


def some_order_is_wrong(relation: Relation, sends: Sends) -> bool:
    """Whether some order ends with a wrong result, or gets stuck."""
    search = _Search(relation, sends)
    return search.wrong()


class _Search:
    def __init__(self, relation: Relation, sends: Sends) -> None:
        self.size, self.chunks = relation.size, relation.chunks
        table = sends.table.tolist()
        bounds = [*np.flatnonzero(np.diff(sends.step, prepend=-1)).tolist(), len(table)]
        self.turns: list[list[tuple[list[int], list[int]]]] = [[] for _ in range(self.size)]
        for begin, end in pairwise(bounds):
            for rank in range(self.size):
                out = [row for row in range(begin, end) if table[row][1] == rank]
                into = [row for row in range(begin, end) if table[row][2] == rank]
                if out or into:
                    self.turns[rank].append((out, into))
        self.table = table
        self.start: dict[tuple[int, int], Held] = {}
        garbage = (*(0 for _ in range(self.size)), 1)
        for rank in range(self.size):
            for chunk in range(self.chunks):
                self.start[rank, chunk] = garbage
        for place in relation.before.tolist():
            rank, chunk = divmod(place, self.chunks)
            self.start[rank, chunk] = (*(int(rank == k) for k in range(self.size)), 0)
        self.goal: dict[tuple[int, int], Held] = {}
        for place in relation.after.tolist():
            rank, chunk = divmod(place, self.chunks)
            self.goal[rank, chunk] = (
                *(int(k * self.chunks + chunk in set(relation.before.tolist())) for k in range(self.size)),
                0,
            )

    def wrong(self) -> bool:
        """Search depth first through all states that can be reached."""
        # A rank is in its turn-th turn; `begun` once it has sent; `left` are the messages that it has still to take.
        ranks = tuple((0, False, frozenset[int]()) for _ in range(self.size))
        first = (ranks, tuple(self.start.values()), frozenset[tuple[int, Held]]())
        keys = list(self.start)
        stack, seen = [first], {first}
        while stack:
            state = stack.pop()
            following = list(self._next(state, keys))
            if not following:
                ranks, held, _ = state
                if any(turn < len(self.turns[rank]) for rank, (turn, _, _) in enumerate(ranks)):
                    return True  # stuck
                values = dict(zip(keys, held, strict=True))
                if any(values[place] != goal for place, goal in self.goal.items()):
                    return True
            for other in following:
                if other not in seen:
                    seen.add(other)
                    stack.append(other)
        return False

    def _next(self, state, keys):  # type: ignore[no-untyped-def]
        ranks, held, flying = state
        values = dict(zip(keys, held, strict=True))
        for rank, (turn, begun, left) in enumerate(ranks):
            if turn == len(self.turns[rank]):
                continue
            out, into = self.turns[rank][turn]
            if not begun:
                sent = frozenset((row, values[rank, self.table[row][3]]) for row in out)
                yield self._moved(ranks, rank, (turn, True, frozenset(into)), held, flying | sent)
                return
            if not left:
                yield self._moved(ranks, rank, (turn + 1, False, frozenset()), held, flying)
                return
        for rank, (turn, _, left) in enumerate(ranks):
            arrived = [message for message in flying if message[0] in left]
            if not left or len(arrived) < len(left):
                continue
            for row, content in arrived:
                at = (rank, self.table[row][3])
                new = tuple(a + b for a, b in zip(values[at], content, strict=True))
                written = new if self.table[row][4] == REDUCE else content
                after = tuple(written if key == at else value for key, value in values.items())
                yield self._moved(ranks, rank, (turn, True, left - {row}), after, flying - {(row, content)})
            return

    def _moved(self, ranks, rank, place, held, flying):  # type: ignore[no-untyped-def]
        return (*ranks[:rank], place, *ranks[rank + 1 :]), held, flying
