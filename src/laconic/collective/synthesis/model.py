"""Mixed-integer programmes, written row by row and solved by HiGHS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.errors import LaconicError

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Solution:
    """What a solver says of a programme.

    - `values`: of all variables, the best that were found; none where nothing was.
    - `value`: of the objective, for these.
    - `bound`: below which no solution's objective lies; infinite where there is no solution at all.
    """

    values: Numbers | None
    value: float
    bound: float

    @property
    def is_infeasible(self) -> bool:
        """Whether it is proved that there is no solution."""
        return self.bound == np.inf

    @property
    def is_optimal(self) -> bool:
        """Whether no solution is better by more than one part in ten thousand."""
        return self.values is not None and self.value <= self.bound + 1e-4 * abs(self.value) + 1e-12


class Model:
    """A programme: minimise a linear objective over variables within bounds, some of them whole, and rows."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.whole: list[int] = []
        self._columns: list[int] = []
        self._factors: list[float] = []
        self._ends: list[int] = [0]
        self._low: list[float] = []
        self._high: list[float] = []

    def variable(self, lower: float = 0.0, upper: float = 1.0, whole: bool = False, cost: float = 0.0) -> int:
        """Add a variable and return its number."""
        self.lower.append(lower)
        self.upper.append(upper)
        self.whole.append(int(whole))
        self.cost.append(cost)
        return len(self.cost) - 1

    def row(self, terms: Sequence[tuple[int, float]], low: float = -np.inf, high: float = np.inf) -> None:
        """Add the condition that the sum of factor times variable lies between low and high."""
        self._columns += [column for column, _ in terms]
        self._factors += [factor for _, factor in terms]
        self._ends.append(len(self._columns))
        self._low.append(low)
        self._high.append(high)

    @property
    def choices(self) -> int:
        """The number of whole variables that are free."""
        return sum(whole and low < high for whole, low, high in zip(self.whole, self.lower, self.upper, strict=True))

    def solve(self, seconds: float, gap: float = 1e-5) -> Solution:
        """Return the best solution that is found in so many seconds, to a relative gap."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        shape = (len(self._low), len(self.cost))
        rows = csr_array((self._factors, self._columns, self._ends), shape=shape)
        rows.sum_duplicates()
        found = milp(
            np.asarray(self.cost),
            integrality=np.asarray(self.whole),
            bounds=Bounds(self.lower, self.upper),
            constraints=LinearConstraint(rows, self._low, self._high) if len(self._low) else (),
            options={"time_limit": max(seconds, 0.01), "mip_rel_gap": gap},
        )
        if found.status == 2:
            return Solution(None, np.inf, np.inf)
        if found.status not in (0, 1) or (found.status == 0 and found.x is None):
            raise LaconicError(f"the solver gave up: {found.message}")
        bound = (
            found.mip_dual_bound if found.mip_dual_bound is not None else (found.fun if found.status == 0 else -np.inf)
        )
        if found.x is None:
            return Solution(None, np.inf, min(float(bound), np.finfo(float).max))
        return Solution(np.asarray(found.x), float(found.fun), float(bound))
