"""Beamer: coflows of hyper-parameter searches in an order of stages, each of which ends with its last job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.flows.rates import one_after_another, sending
from laconic.cluster.flows.traffic import Rates, Traffic
from laconic.registry import technique


def from_the_back(loads: NDArray[np.float64], weights: Sequence[float] | None = None) -> list[int]:
    """Return an order of rows, the first to be served first, built from the back: on the most loaded port, the row with
    the least weight for its load comes last; the others' weights are reduced by what it would have cost, and so on.

    This is the scheme of Sincronia (Agarwal and others, SIGCOMM 2018) for coflows; rows may be sets of them.

    - `loads`: what each row sends through each port, in seconds.
    - `weights`: of rows; default: equal.
    """
    left = list(range(len(loads)))
    weight = np.ones(len(loads)) if weights is None else np.array(weights, dtype=float)
    order: list[int] = []
    while left:
        port = int(loads[left].sum(axis=0).argmax())
        on_port = loads[left, port]
        used = [row for row, load in zip(left, on_port, strict=True) if load > 0] or left
        last = min(used, key=lambda row: (weight[row] / max(loads[row, port], 1e-300), -row))
        for row in left:
            if row != last and loads[last, port] > 0:
                weight[row] -= weight[last] * loads[row, port] / loads[last, port]
        left.remove(last)
        order.append(last)
    return order[::-1]


@technique(
    "beamer",
    axis="cluster",
    paper="He, Li, Cui, Liu, Li, Bao, Guo, IEEE TNSM 19(2), 2022",
    why_no_word="It orders the flows of many jobs; a strategy speaks of one.",
)
def beamer(traffic: Traffic, memory: Any = None) -> tuple[Rates, Any]:
    """Return the rates under strict priority by stages, whose jobs are all waited for: stages are ordered from the back
    by what they have still to send; in a stage, the job with most left is first. What is left goes to the next.

    Reading chosen: that the order is found by bottleneck, selection and scaling is inferred from the paper's baseline
    and its bound. A job without a stage is a stage of its own.

    - `traffic`: what is sent now.
    - `memory`: unused.
    """
    stages: dict[str | int, list[int]] = {}
    for job in traffic.unfinished:
        stages.setdefault(traffic.jobs[job].stage or job, []).append(job)
    seconds = {job: traffic.remaining_bytes(job) / traffic.room for job in traffic.unfinished}
    names = list(stages)
    order = from_the_back(np.array([sum(seconds[job] for job in stages[name]) for name in names]))
    active = set(sending(traffic))
    ranked = [
        [job]
        for place in order
        for job in sorted(stages[names[place]], key=lambda job: (-float(seconds[job].max()), job))
        if job in active
    ]
    return Rates(one_after_another(traffic, ranked, traffic.room.copy())), memory
