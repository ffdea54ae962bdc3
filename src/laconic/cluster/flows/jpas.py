"""JPAS: flows of jobs that are nearest to their end go first, by few priority classes."""

from __future__ import annotations

import math

from laconic.cluster.flows.rates import one_after_another, sending
from laconic.cluster.flows.traffic import Rates, Traffic
from laconic.errors import ClusterError
from laconic.registry import technique

Ranks = tuple[float, dict[int, int]]  # when jobs are sorted again, and the class of each since the last sorting


def remaining_seconds(traffic: Traffic, job: int) -> float:
    """Return the network time that a job has ahead of it at its most loaded port, if it were alone.

    - `traffic`: what is sent now, with every job's progress.
    - `job`: its number.
    """
    return float((traffic.remaining_bytes(job) / traffic.room).max())


@technique(
    "jpas",
    axis="cluster",
    paper="Zhou, Wang, Chen, Qiao, Journal of Network and Computer Applications 158, 2020",
    why_no_word="It gives priorities to the flows of many jobs; a strategy speaks of one.",
)
def jpas(
    traffic: Traffic, memory: Ranks | None = None, *, classes: int = 8, period: float = 1.0
) -> tuple[Rates, Ranks]:
    """Return the rates under strict priority of classes, into which a coordinator sorts jobs every period: whoever has
    the least network time left, by the progress that it reports, is first. The first ranks have a class each, the
    others share the last; flows of a class share fairly, as the network's own rate control has it.

    Reading chosen: the key is the remaining time, not the loss that is still to fall. A job that comes between two
    sortings is in the last class until the next.

    - `traffic`: what is sent now.
    - `memory`: what the last sorting left.
    - `classes`: priority classes of the network; with one, flows share fairly.
    - `period`: seconds between sortings.
    """
    if classes < 1 or period <= 0:
        raise ClusterError("flows have at least one priority class, and a period above 0 between sortings")
    if memory is None or traffic.now >= memory[0] - 1e-9:
        ranked = sorted(traffic.unfinished, key=lambda job: (remaining_seconds(traffic, job), job))
        own = {job: min(rank, classes - 1) for rank, job in enumerate(ranked)}
        memory = (math.floor(traffic.now / period + 1e-9) + 1) * period, own
    again, own = memory
    groups: list[list[int]] = [[] for _ in range(classes)]
    for job in sending(traffic):
        groups[own.get(job, classes - 1)].append(job)
    return Rates(one_after_another(traffic, [group for group in groups if group], traffic.room.copy()), again), memory
