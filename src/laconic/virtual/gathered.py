"""What virtual workers have gathered: one memory for all of them, and one computation of what follows from it alone.

N workers that each kept the messages of all, and each decoded them, would take N times the memory and the time of N
processes. They share a process, so that one copy and one computation serve them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from laconic.errors import LaconicError


class Gathered:
    """The rows that all members of a group have gathered, and what was computed from them."""

    def __init__(self, rows: Tensor, members: int) -> None:
        self._version = rows._version
        self._computed: Tensor | None = None
        self._left = members  # how many have not asked for it

    def check(self, rows: Tensor) -> None:
        """Raise an error where somebody has written to what the others are still to read."""
        if rows._version != self._version:
            raise LaconicError(
                "what an all-gather returned was written to, and the virtual workers share it: copy it first (clone)"
            )

    def compute(self, into: Tensor, compute: Callable[[], Any]) -> None:
        """Compute what follows from the rows alone, or copy what the first member has computed."""
        self._left -= 1
        if self._computed is not None:
            into.copy_(self._computed)
        else:
            compute()
            self._computed = into.clone() if self._left > 0 else None  # soon it writes to its own memory again
        if self._left == 0:
            self._computed = None


class AllGathered:
    """Everything that somebody still holds of what was gathered."""

    def __init__(self) -> None:
        self._known: Any = WeakTensorKeyDictionary()

    def keep(self, rows: Tensor) -> Tensor:
        """Note that these rows, one of each member, are the same tensor on all members."""
        self._known[rows] = Gathered(rows, len(rows))
        return rows

    def checked(self, rows: Tensor) -> Tensor:
        """Return the rows, unless somebody has written to them."""
        self._known[rows].check(rows)
        return rows

    def compute(self, answer: Tensor, into: Tensor, compute: Callable[[], Any]) -> None:
        """Compute what follows from an answer alone: once for all, if it is one that all members share."""
        found = self._known.get(answer)
        if found is None:
            compute()
        else:
            found.compute(into, compute)
