"""What the six steps decided about one job, from a virtual run or from the journal of any driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from laconic.cluster.contention import Running
from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate
from laconic.cluster.journal import replayed
from laconic.cluster.outcome import PARTS, Outcome
from laconic.cluster.policy import Policy
from laconic.cluster.replay import Costs, replay
from laconic.cluster.sending import OnLinks, Sending
from laconic.cluster.state import Event, State
from laconic.cluster.workflow.arrangement import Arrangement, arrange
from laconic.cluster.workflow.features import Features
from laconic.cluster.workflow.workflow import Memory, Steps, Workflow
from laconic.errors import ClusterError
from laconic.language.word import PolicyWord


class Moment(NamedTuple):
    """The six steps of one job at a moment at which something of it changed.

    - `now`: when that was, and `events`: upon what.
    - `done`: the work that it had done.
    - `profile`: what was known of it.
    - `workers`: how many workers it was to have.
    - `held`, `grant`: what it held before and holds after the decision; None: nothing.
    - `runs`, `waits`: how many jobs do either after it.
    - `arrangement`: of its iteration; None: it sends nothing.
    - `ahead`, `senders`: how many jobs' flows go before its own, of all that send.
    - `rate`: how fast it is then; None: it waits.
    """

    now: float
    events: tuple[Event, ...]
    done: float
    profile: Features
    workers: int
    held: Grant | None
    grant: Grant | None
    runs: int
    waits: int
    arrangement: Arrangement | None
    ahead: int
    senders: int
    rate: Rate | None

    @property
    def decided(self) -> tuple[object, ...]:
        """What the steps decided, without what they were asked upon."""
        return self.profile, self.workers, self.grant, self.arrangement, self.ahead, self.senders, self.rate


class Explained(NamedTuple):
    """What became of a job.

    - `job`: the job.
    - `moments`: when something of it changed.
    - `parts`: the seconds that went to each of `PARTS`.
    - `completed`: when it was done; not a number where the run ended before.
    """

    job: Job
    moments: tuple[Moment, ...]
    parts: tuple[float, ...]
    completed: float


def as_workflow(policy: Policy) -> Workflow:
    """Return a policy as a chain of steps: one that allocates and orders by itself is the third, and knows what the
    driver knows.

    - `policy`: who decides.
    """
    return policy if isinstance(policy, Workflow) else Workflow(profile="table", order=str(PolicyWord.of(policy)))


def explain_run(
    jobs: Iterable[Job], cluster: Cluster, policy: Policy, name: str, costs: Costs | None = None
) -> Explained:
    """Run jobs under a virtual clock, and return what became of one of them.

    - `jobs`: the jobs.
    - `cluster`: the hosts.
    - `policy`: who decides.
    - `name`: of the job.
    - `costs`: of starting and stopping.
    """
    ordered = sorted(jobs, key=lambda job: job.arrival)
    number = _number(ordered, name)
    watched = _Watched(as_workflow(policy), number)
    contention = watched.workflow.contention if cluster.network is not None else None
    outcome = replay(ordered, cluster, watched, costs, contention=contention)
    return Explained(ordered[number], tuple(watched.moments), _parts(outcome, number), float(outcome.completed[number]))


def explain_journal(
    entries: Sequence[Mapping[str, Any]], jobs: Iterable[Job], cluster: Cluster, policy: Policy, name: str
) -> Explained:
    """Return what became of a job of a run that has written a journal, whichever driver did.

    - `entries`: of the journal.
    - `jobs`: the jobs of the run.
    - `cluster`: its hosts.
    - `policy`: who decided.
    - `name`: of the job.
    """
    ordered = sorted(jobs, key=lambda job: job.arrival)
    number = _number(ordered, name)
    watched = _Watched(as_workflow(policy), number)
    for again in replayed(entries, ordered, cluster, watched):
        if not again.is_equal:
            raise ClusterError(f"the journal was not written under {policy}: at {again.now:g} s that decides otherwise")
    parts, completed = (0.0,) * len(PARTS), float("nan")
    for entry in entries:
        if entry["kind"] == "decided" and str(number) in entry["rows"]:
            parts = tuple(entry["rows"][str(number)][-len(PARTS) :])
            if ["Completion", number] in entry["events"]:
                completed = min(float(entry["now"]), completed) if completed == completed else float(entry["now"])
        elif entry["kind"] == "completed" and entry["job"] == number:
            parts, completed = tuple(entry["row"][-len(PARTS) :]), float(entry["at"])
    return Explained(ordered[number], tuple(watched.moments), parts, completed)


@dataclass(frozen=True)
class _Watched(Policy):
    """A workflow that decides as ever, and of one of whose jobs is noted what each step did."""

    workflow: Workflow
    job: int
    moments: list[Moment] = field(default_factory=list)

    @property
    def every(self) -> float | None:
        return self.workflow.every

    def init(self) -> Memory:
        return self.workflow.init()

    def decide(self, state: State, events: Sequence[Event], memory: Memory) -> tuple[Decision, Memory]:
        steps, memory = self.workflow.steps(state, events, memory)
        if self.job in steps.profiles:
            found = _moment(self.workflow, self.job, state, events, steps)
            if not self.moments or found.decided != self.moments[-1].decided:
                self.moments.append(found)
        return steps.decision, memory


def _moment(workflow: Workflow, job: int, state: State, events: Sequence[Event], steps: Steps) -> Moment:
    grants = steps.decision.grants
    grant, rate, arrangement = grants.get(job), None, None
    ahead = senders = 0
    if grant is not None:
        arrangement = arrange(workflow.arrange, state.jobs[job], grant, state.cluster)
        running = [Running(state.jobs[other], grants[other], float(state.done(other))) for other in sorted(grants)]
        place = sorted(grants).index(job)
        if arrangement is None:
            rate = state.jobs[job].progress.rate(float(state.done(job)), grant, state.cluster, ())
        else:
            rate = workflow.contention.rates(running, state.cluster)[place]
            ahead, senders = _place(workflow.contention, running, place, state.cluster)
    waits = len(state.active) - len(grants)
    held = state.running.get(job)
    done, known = float(state.done(job)), steps.profiles[job]
    return Moment(
        state.now, tuple(events), done, known, steps.workers[job], held, grant, len(grants), waits,
        arrangement, ahead, senders, rate,
    )  # fmt: skip


def _place(contention: OnLinks, running: Sequence[Running], place: int, cluster: Cluster) -> tuple[int, int]:
    """Return how many jobs' flows go before a job's, of all that send."""
    assert cluster.network is not None
    there = [
        (number, one, one.job.progress.loads(one.grant, cluster) / cluster.network.capacities)
        for number, one in enumerate(running)
        if isinstance(one.job.progress, Sending) and one.job.progress.seconds(one.grant, cluster)[1] > 0
    ]
    own = [number for number, *_ in there].index(place)
    ahead = 0
    for group in contention.groups([one for _, one, _ in there], np.array([load for *_, load in there])):
        if own in group:
            break
        ahead += len(group)
    return ahead, len(there)


def _number(jobs: Sequence[Job], name: str) -> int:
    for number, job in enumerate(jobs):
        if job.name == name:
            return number
    raise ClusterError(f"no job is called {name}; the first is {jobs[0].name}")


def _parts(outcome: Outcome, number: int) -> tuple[float, ...]:
    return tuple(outcome.parts[:, number].tolist())
