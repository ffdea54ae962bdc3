"""Fitting constants of the cost model to measured iterations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from laconic.errors import LaconicError
from laconic.parallel.hybrid.cluster import Cluster, Constants
from laconic.parallel.hybrid.iteration import priced
from laconic.parallel.hybrid.runs import Run, Runs

_PRIOR = 0.1  # how much a constant's logarithm counts beside a run's: it decides only what the runs leave open
_OUTLIER = 0.1  # relative errors above this count linearly, not squared


def fitted(
    runs: Sequence[Run],
    seconds: Sequence[float],
    names: Sequence[str],
    cluster: Cluster,
    start: Constants | None = None,
) -> Constants:
    """Return the constants with the named ones fitted to measured seconds, in relative errors; the others are kept.

    - `names`: fields of `Constants`.
    - `start`: where to begin, and what the fit stays near where the runs leave a constant open.
    """
    from scipy.optimize import least_squares

    if len(runs) != len(seconds) or not runs:
        raise LaconicError(f"{len(runs)} runs and {len(seconds)} times: a fit takes as many of each, and one at least")
    start = start or Constants()
    table, logarithms = Runs.of(runs), np.log(np.asarray(seconds, float))
    first = np.array([math.log(getattr(start, name)) for name in names])

    def residuals(point: Any) -> Any:
        constants = _with(start, names, point)
        return np.concatenate([np.log(priced(table, cluster, constants).total) - logarithms, _PRIOR * (point - first)])

    most = [0.0 if name.endswith("_share") else math.inf for name in names]  # nothing exceeds a data sheet
    found = least_squares(residuals, first, bounds=([-math.inf] * len(names), most), loss="soft_l1", f_scale=_OUTLIER)
    return _with(start, names, found.x)


def _with(start: Constants, names: Sequence[str], point: Any) -> Constants:
    return replace(start, **{name: float(math.exp(value)) for name, value in zip(names, point, strict=True)})
