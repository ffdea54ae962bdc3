"""Step 5, the flow level: which jobs' messages go first over links that they share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.flows.beamer import from_the_back
from laconic.cluster.sending import Priorities


def shortest(seconds: NDArray[np.float64]) -> list[list[int]]:
    """Return each row alone, the one first that would be done with its busiest link first, as JPAS orders jobs.

    - `seconds`: what each row has still to send over each link.
    """
    ahead = seconds.max(axis=1)
    return [[int(row)] for row in np.lexsort((np.arange(len(ahead)), ahead))]


def backwards(seconds: NDArray[np.float64]) -> list[list[int]]:
    """Return each row alone, in the order that is found from its end, as Beamer and Sincronia order coflows.

    - `seconds`: what each row has still to send over each link.
    """
    return [[row] for row in from_the_back(seconds)]


RULES: dict[str, Priorities] = {"shortest": shortest, "backwards": backwards}
