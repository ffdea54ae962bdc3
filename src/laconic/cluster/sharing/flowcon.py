"""FlowCon: trainings on one node whose progress has slowed down leave their share to those that still learn fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from laconic.errors import ClusterError
from laconic.registry import technique

Stage = Literal["new", "watching", "completing"]

_NEXT: dict[Stage, Stage] = {"new": "watching", "watching": "completing", "completing": "completing"}


@dataclass(frozen=True)
class Tracked:
    """What is known of a training.

    - `stage`: whether it learns fast ("new"), has been slow once ("watching"), or for longer ("completing").
    - `limit`: the weight with which it competes for the node; a soft limit, since what others do not use is its own.
    - `value`: its evaluation function, as last reported: a loss, an accuracy.
    - `largest`: the largest growth efficiency so far.
    """

    stage: Stage = "new"
    limit: float = 1.0
    value: float | None = None
    largest: float = 0.0


@dataclass(frozen=True)
class Node:
    """The trainings of a node at one moment.

    - `jobs`: what is known of each, by name.
    - `now`: the seconds of the last pass.
    - `interval`: the seconds until the next one.
    """

    jobs: Mapping[str, Tracked] = field(default_factory=dict)
    now: float = 0.0
    interval: float = 0.0

    def shares(self) -> dict[str, float]:
        """Return the share of the node that each training has while all of them can use it."""
        total = sum(job.limit for job in self.jobs.values())
        return {name: job.limit / total for name, job in self.jobs.items()}


@technique(
    "flowcon",
    axis="cluster",
    paper="Zheng, Tynes, Gorelick, Mao, Cheng, Hou, ICPP 2019",
    why_no_word="It sets the weights of trainings that any policy has put on one node.",
)
def rebalance(
    known: Node,
    now: float,
    reports: Mapping[str, tuple[float, float]],
    *,
    alpha: float = 0.05,
    beta: float = 2.0,
    interval: float = 20.0,
) -> Node:
    """Return what a pass changes: the stages and limits of a node's trainings, and when the next pass is due.

    The growth efficiency of a training is how much its evaluation function has changed in a second, over the share of
    the node that it used. Where that is below `alpha`, the training goes one stage on, from new to watching to
    completing; otherwise it is new again. New ones have the limit 1, those that are watched keep theirs, and completing
    ones have their part of all growth efficiencies, and at least 1/(beta n) where n trainings are there. If all are
    completing, none is limited, and passes become half as frequent, until one arrives or leaves.

    Readings chosen: efficiencies are compared with alpha as parts of the largest one that the training has had, since
    losses have units of their own; and parts of all efficiencies are those of these parts. The placement of new
    containers in the journal version of 2023 is not here. Weights are enforced by whoever runs the trainings, as
    cgroups' `cpu.weight` does; the gain was seen on a virtual node only.

    - `known`: what the last pass left; `Node()` at first.
    - `now`: the seconds of this pass.
    - `reports`: for each training on the node, its evaluation function and the share of the node that it has used since
      the last pass.
    - `alpha`: the efficiency below which a training is slow.
    - `beta`: how far below an equal share a limit may fall.
    - `interval`: seconds between passes.
    """
    if not 0 < alpha < 1 or not beta >= 1 or not interval > 0:
        raise ClusterError("alpha is between 0 and 1, beta at least 1, and an interval takes some time")
    if not reports:
        return Node({}, now, interval)
    seconds = now - known.now
    grown, parts = dict[str, Tracked](), dict[str, float]()
    for name, (value, used) in reports.items():
        job = known.jobs.get(name)
        if job is None or job.value is None or seconds <= 0 or used <= 0:
            grown[name] = Tracked(value=value) if job is None else replace(job, value=value)
            parts[name] = 1.0
            continue
        efficiency = abs(value - job.value) / seconds / used
        largest = max(job.largest, efficiency)
        parts[name] = efficiency / largest if largest else 0.0
        stage = _NEXT[job.stage] if parts[name] < alpha else "new"
        grown[name] = replace(job, stage=stage, value=value, largest=largest)
    completing = all(job.stage == "completing" for job in grown.values())
    total, least = sum(parts.values()), 1 / (beta * len(grown))
    for name, job in grown.items():
        limit = 1.0 if job.stage == "new" or completing else job.limit
        if job.stage == "completing" and not completing:
            limit = min(1.0, max(parts[name] / total if total else 0.0, least))
        grown[name] = replace(job, limit=limit)
    backs_off = completing and set(known.jobs) == set(reports)
    return Node(grown, now, 2 * known.interval if backs_off else interval)
