"""The workflow of a cluster: profile, allocate, order, arrange, give rates to flows, run; and back to the first."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.outcome import Outcome
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policy import Policy
from laconic.cluster.replay import Costs, Outage, replay
from laconic.cluster.sending import OnLinks
from laconic.cluster.state import Event, State
from laconic.cluster.workflow import allocation, features, priorities
from laconic.cluster.workflow.arrangement import arrange, schedule_of
from laconic.cluster.workflow.features import Features, History
from laconic.errors import ClusterError
from laconic.language.grammar import parse_policy
from laconic.registry import knob, technique


@dataclass
class Memory:
    """What the steps remember.

    - `order`: what the policy of the third step does.
    - `history`: what was measured.
    """

    order: Any
    history: History = field(default_factory=History)


class Steps(NamedTuple):
    """What the first three steps decide at one moment.

    - `profiles`: what is known of each job that is there.
    - `workers`: how many workers each is to have.
    - `order`: what the policy of the third step wants, given both.
    - `decision`: the same, with jobs that run brought to their numbers of workers.
    """

    profiles: Mapping[int, Features]
    workers: Mapping[int, int]
    order: Decision
    decision: Decision


@technique("cluster_workflow", paper="Liang et al., arXiv 2404.06114, V and Figure 9", aliases=("workflow",))
@dataclass(frozen=True)
class Workflow(Policy):
    """Every job goes through six steps, each a function of what those before it decided, and each can be none: its
    profile is made, it is allocated GPUs, ordered among the others, its iteration is arranged, its flows get rates, and
    it runs; what was measured of it is part of later profiles.

    A driver is handed the first three as a policy, and `contention` has the next two, which say how fast jobs are under
    a virtual clock; on a real cluster the job itself and the network do that. With all of them none, jobs run as they
    came, each alone on the GPUs that it asked for, and flows share links max-min fairly.

    The survey describes the steps in a paragraph; what they hand to each other is our reading. Networks are allocated
    by the fifth step alone.
    """

    profile: str | None = knob(None, choices=features.SOURCES, doc="who knows a job's work and speeds; none: nobody")
    allocate: str | None = knob(None, choices=allocation.RULES, doc="who gets how many GPUs; none: what was asked for")
    order: str | None = knob(None, doc="the policy that says who runs, such as srtf; none: fifo")
    arrange: str | None = knob(None, doc="when a job sends, such as wfbp; none: when all is computed")
    flows: str | None = knob(None, choices=tuple(priorities.RULES), doc="whose flows go first; none: max-min fair")

    def __post_init__(self) -> None:
        super().__post_init__()
        schedule_of(self.arrange)
        if isinstance(self.policy, Workflow):
            raise ClusterError("a workflow does not order jobs for another; name a policy, such as srtf")

    @cached_property
    def policy(self) -> Policy:
        """The policy that orders jobs: the one that is named, or first come, first served."""
        found: Policy = parse_policy(self.order) if self.order is not None else Fifo()
        return found

    @property
    def contention(self) -> OnLinks:
        """How running jobs slow each other down, by the fourth and the fifth step."""
        iteration = None if self.arrange is None else self._iteration
        return OnLinks(iteration, None if self.flows is None else priorities.RULES[self.flows])

    def _iteration(self, job: Job, grant: Grant, cluster: Cluster) -> float:
        found = arrange(self.arrange, job, grant, cluster)
        assert found is not None  # it is asked of jobs that send
        return found.seconds

    @property
    def every(self) -> float | None:
        return self.policy.every

    def init(self) -> Memory:
        return Memory(self.policy.init())

    def decide(self, state: State, events: Sequence[Event], memory: Memory) -> tuple[Decision, Memory]:
        steps, memory = self.steps(state, events, memory)
        return steps.decision, memory

    def steps(self, state: State, events: Sequence[Event], memory: Memory) -> tuple[Steps, Memory]:
        """Return what the first three steps decide, and what to remember.

        - `state`: the cluster now.
        - `events`: what happened since the last decision.
        - `memory`: what the last decision left.
        """
        memory.history.hear(state, events)
        profiles = features.profile(self.profile, state, memory.history)
        workers = allocation.allocate(self.allocate, state, profiles)
        running, room = allocation.shrunk(state, workers)
        seen = self._as_ordered(state, profiles, workers, running, room)
        order, memory.order = self.policy.decide(seen, events, memory.order)
        if self.allocate is None:
            return Steps(profiles, workers, order, order), memory
        free = room.copy()
        for job in running:
            if order.grants.get(job) != running[job]:
                free.give(state.jobs[job], running[job])
        for job, grant in order.grants.items():
            if running.get(job) != grant:
                free.take(state.jobs[job], grant)
        grants = allocation.grown(state, order.grants, free, workers)
        return Steps(profiles, workers, order, Decision(grants, order.wake)), memory

    def _as_ordered(
        self,
        state: State,
        profiles: Mapping[int, Features],
        workers: Mapping[int, int],
        running: Mapping[int, Grant],
        room: Any,
    ) -> State:
        """Return the cluster as the third step sees it: with estimates from profiles and gangs from allocations."""
        seen = state
        if self.profile != "table":
            estimates = list(state.estimates)
            for job, known in profiles.items():
                estimates[job] = known.work
            seen = seen._replace(estimates=estimates)
        if self.allocate is not None:
            jobs, tables = list(state.jobs), copy.copy(state.tables)
            for job, count in workers.items():
                if count != jobs[job].workers:
                    jobs[job] = replace(jobs[job], gpus=count)
            seen = seen._replace(jobs=jobs, tables=tables, running=running, room=room)
        return seen


def run(
    jobs: Iterable[Job],
    cluster: Cluster,
    workflow: Workflow,
    costs: Costs | None = None,
    outages: Iterable[Outage] = (),
) -> Outcome:
    """Run jobs through the six steps under a virtual clock, and return what came of it.

    - `jobs`: the jobs.
    - `cluster`: the hosts.
    - `workflow`: the steps.
    - `costs`: of starting and stopping; default: none.
    - `outages`: of hosts.
    """
    contention = workflow.contention if cluster.network is not None else None
    return replay(jobs, cluster, workflow, costs, outages, contention=contention)


def ablated(workflow: Workflow) -> dict[str, Workflow]:
    """Return the workflow with each of its steps set to none, by the step's name.

    - `workflow`: the whole chain.
    """
    names = [name for name in ("profile", "allocate", "order", "arrange", "flows") if getattr(workflow, name)]
    return {name: replace(workflow, **{name: None}) for name in names}
