"""Workers of unequal speed: how many times as long each worker takes in each step.

Both engines use this module, so that the same workers straggle in the same steps on either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, get_args

from laconic.errors import LaconicError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DRAWS = 1024

Law = Literal["constant", "exponential"]


@dataclass(frozen=True)
class Stragglers:
    """In some steps, chosen at random for each worker, computing takes longer.

    - `probability`: the share of such steps, 0 to 1.
    - `factor`: how many times as long they take.
    """

    probability: float
    factor: float

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1 or not 0 < self.factor < math.inf:
            raise LaconicError(f"a straggler has a probability of 0 to 1 and a positive factor: {self}")


@dataclass(frozen=True)
class WorkerSpeeds:
    """The `slowness` of each worker (cycled), a `trace` of factors by step and worker (cycled), and random stragglers.

    With the `law` exponential, each step takes a random time of that mean, as analyses by queueing theory and of
    asynchronous SGD often assume.
    """

    slowness: tuple[float, ...] = (1.0,)
    straggling: Stragglers | None = None
    trace: tuple[tuple[float, ...], ...] = ()
    seed: int = 0
    law: Law = "constant"

    def __post_init__(self) -> None:
        factors = [*self.slowness, *(factor for row in self.trace for factor in row)]
        if not all(0 < factor < math.inf for factor in factors):
            raise LaconicError(f"slowness is positive, and 1 for a worker of full speed: {self}")
        if self.law not in get_args(Law):
            raise LaconicError(f"a step's time is {' or '.join(get_args(Law))}, not {self.law!r}")
        if not self.slowness or not all(self.trace):
            raise LaconicError("slowness and each row of a trace hold at least one factor, for a worker")

    @classmethod
    def read(cls, slowness: Sequence[float], stragglers: Sequence[float]) -> WorkerSpeeds:
        """Build the value from a command line's numbers: factors by worker, and a probability with its factor; without
        any, all workers are equal."""
        return cls(tuple(slowness) or (1.0,), Stragglers(*stragglers) if stragglers else None)

    @property
    def are_equal(self) -> bool:
        """Whether all workers run at full speed all the time."""
        return set(self.slowness) == {1.0} and not self.trace and self.straggling is None and self.law == "constant"

    def factor(self, rank: int, step: int) -> float:
        """Return how many times as long this worker takes in this step; the answer does not depend on the order of
        calls."""
        slow = self.slowness[rank % len(self.slowness)]
        if self.trace:
            row = self.trace[step % len(self.trace)]
            slow *= row[rank % len(row)]
        if self.straggling is not None:
            draw = _draws(self.seed, step, rank // _DRAWS)[rank % _DRAWS]
            slow *= self.straggling.factor if draw < self.straggling.probability else 1.0
        if self.law == "exponential":
            slow *= float(_durations(self.seed, step, rank // _DRAWS)[rank % _DRAWS])
        return slow

    def factors(self, workers: int, step: int) -> NDArray[np.float64]:
        """Return the factors of all workers at once."""
        import numpy as np

        slow = np.resize(np.array(self.slowness), workers)
        if self.trace:
            slow = slow * np.resize(np.array(self.trace[step % len(self.trace)]), workers)
        if self.straggling is not None:
            blocks = [_draws(self.seed, step, block) for block in range(-(-workers // _DRAWS))]
            straggles = np.concatenate(blocks)[:workers] < self.straggling.probability
            slow = np.where(straggles, slow * self.straggling.factor, slow)
        if self.law == "exponential":
            blocks = [_durations(self.seed, step, block) for block in range(-(-workers // _DRAWS))]
            slow = slow * np.concatenate(blocks)[:workers]
        return slow


@lru_cache(maxsize=64)
def _draws(seed: int, step: int, block: int) -> NDArray[np.float64]:
    """Return a uniform random number for each worker of a block of ranks, in one step."""
    import numpy as np

    return np.random.default_rng((seed, step, block)).random(_DRAWS)


@lru_cache(maxsize=64)
def _durations(seed: int, step: int, block: int) -> NDArray[np.float64]:
    """Return exponential random numbers of mean one for each worker of a block of ranks, in one step."""
    import numpy as np

    return np.random.default_rng((seed, step, block, 1)).exponential(size=_DRAWS)
