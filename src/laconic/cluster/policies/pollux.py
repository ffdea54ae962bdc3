"""Pollux: GPUs and batches by goodput, for all jobs together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.genetic import Problem, search
from laconic.cluster.goodput import Limits, Sample, StepModel, fit_steps
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.policy import Policy
from laconic.cluster.state import Completion, Event, State
from laconic.cluster.training import Training, ring
from laconic.errors import ClusterError
from laconic.registry import knob, technique


@dataclass
class Agent:
    """What a job's agent has measured and made of it.

    - `limits`: the batches that its model can be trained with.
    - `samples`: measured steps, by hosts, workers and samples of a pass.
    - `model`: what steps take, fitted to them.
    - `grad_sqr`, `grad_var`: the norm and the variance of its gradients, when they were measured last.
    """

    limits: Limits
    samples: dict[tuple[int, int, int], Sample] = field(default_factory=dict)
    model: StepModel | None = None
    grad_sqr: float = 0.0
    grad_var: float = 0.0

    @property
    def explored(self) -> int:
        """The most workers that it has had."""
        return max((workers for _, workers, _ in self.samples), default=0)

    def goodputs(self, several: bool, workers: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return the best goodputs with some numbers of workers, and the batches for them."""
        assert self.model is not None
        return self.limits.choices.best(self.model, self.grad_sqr, self.grad_var, several, workers)


@dataclass
class Memory:
    """The agents of the jobs that are there, the states that the last search ended with, of which jobs those are, and
    what is drawn from."""

    rng: np.random.Generator
    agents: dict[int, Agent] = field(default_factory=dict)
    states: np.ndarray | None = None
    jobs: list[int] = field(default_factory=list)


@technique(
    "pollux",
    paper="Qiao et al., OSDI 2021",
    evidence="published",
    reproduces="the mean completion time of its workloads, 2,751 s, within 5 %, and its ranking at four loads",
)
@dataclass(frozen=True)
class Pollux(Policy):
    """Every job's agent fits what its steps take and knows the noise of its gradients: so it knows its goodput on any
    GPUs with any batch, and trains with the batch that makes it largest. In each round a genetic search gives all GPUs
    to all jobs anew, so that the power mean of their speed-ups over a fair share is large; a job that would have to
    move counts as slower by what restarts cost it, and no host has two jobs that are on several hosts.

    Agents measure without error and choose their batches with each round, where the authors' do so after every epoch,
    too. The search keeps the best states by the power mean alone; the authors' simulator keeps those, too, that are
    second to none in using GPUs well.
    """

    interval: float = knob(60.0, above=0, doc="seconds between decisions")
    exponent: float = knob(-1.0, high=1, doc="of the power mean; the more negative, the fairer")
    restart: float = knob(30.0, low=0, doc="seconds that a change of GPUs is taken to cost")
    population: int = knob(100, low=2, doc="states that the search keeps")
    generations: int = knob(100, low=1, doc="generations of the search in each round")
    seed: int = knob(0, low=0, doc="of what the search draws")

    @property
    def every(self) -> float:
        return self.interval

    def init(self) -> Memory:
        return Memory(np.random.default_rng(self.seed))

    def decide(self, state: State, events: Sequence[Event], memory: Memory) -> tuple[Decision, Memory]:
        for event in events:
            if isinstance(event, Completion):
                memory.agents.pop(event.job, None)
        for number in state.active:
            measure(state, number, memory.agents)
        jobs = sorted(state.active, key=lambda number: (float(state.attained(number)), number))
        problem = self.problem(state, jobs, memory.agents)
        found = search(problem, _carried(memory, jobs, problem.present), self.population, self.generations, memory.rng)
        memory.states, memory.jobs = found, jobs
        wanted = {number: row for number, row in zip(jobs, found[0].tolist(), strict=True) if any(row)}
        grants = _placed(state, wanted)
        tuned = {number: _tuned(state, number, grant, memory.agents[number]) for number, grant in grants.items()}
        return Decision(tuned), memory

    def problem(self, state: State, jobs: Sequence[int], agents: Mapping[int, Agent]) -> Problem:
        """Return what the search is given.

        - `state`: the cluster now.
        - `jobs`: the jobs, the most urgent first.
        - `agents`: their agents.
        """
        capacity = np.array(
            [0 if i in state.room.lost else host.gpus for i, host in enumerate(state.cluster.hosts)], dtype=np.int8
        )
        gpus = int(capacity.sum(dtype=int))
        fair = math.ceil(gpus / len(jobs))
        most = [min(max(2 * agents[job].explored, 1), state.jobs[job].most) for job in jobs]
        present = np.zeros((len(jobs), len(capacity)), dtype=np.int8)
        for row, job in zip(present, jobs, strict=True):
            if job in state.running:
                for host, count in state.running[job].by_host:
                    row[host] = count
        speedups = np.zeros((len(jobs), 2, max(most) + 1))
        for table, job, limit in zip(speedups, jobs, most, strict=True):
            table[:, 1 : limit + 1] = speedups_of(agents[job], limit, fair, int(capacity.max()))
        tables, numbers = state.tables, list(jobs)
        age = state.now - np.array([state.jobs[job].arrival for job in jobs])
        moved = np.maximum(age - tables.restarts[numbers] * self.restart, 0.0) / (age + self.restart)
        scale = len(capacity) / gpus  # a share as large as a host counts as 1
        return Problem(present, capacity, np.array(most), speedups * scale, moved, self.exponent)


def measure(state: State, number: int, agents: dict[int, Agent]) -> None:
    """Let the agent of a job measure, if it computes, and fit what is new."""
    job = state.jobs[number]
    training = job.progress
    if not isinstance(training, Training):
        raise ClusterError(f"{job.name} does not measure its steps and gradients; Pollux runs trainings")
    application = training.application
    if number not in agents:
        agents[number] = Agent(application.limits)
    if state.tables.speed[number] > 0:
        agent, grant = agents[number], state.running[number]
        seen = application.measure(ring(grant), grant.batch or training.batch, application.epoch(state.done(number)))
        agent.grad_sqr, agent.grad_var = seen.grad_sqr, seen.grad_var
        key = seen.hosts, seen.workers, seen.local
        if key not in agent.samples:
            agent.samples[key] = Sample(*key, seen.seconds.step - seen.seconds.sync, seen.seconds.step)
            agent.model = fit_steps(tuple(agent.samples.values()))


def speedups_of(agent: Agent, most: int, fair: int, on_one: int) -> np.ndarray:
    """Return how many times faster a job trains with 1, 2, ... GPUs than with a fair share on one host: a row for one
    host and a row for several. Of a job that never ran it is their number over the fair share's.

    - `agent`: the job's agent.
    - `most`: the GPUs that it may get.
    - `fair`: the GPUs of a fair share.
    - `on_one`: the GPUs of the largest host.
    """
    if agent.model is None:
        return np.tile(np.arange(1, most + 1) / fair, (2, 1))
    rows = agent.limits.workers
    fair = min(fair, rows)
    found = np.zeros((2, most))
    here = min(on_one, most)
    found[0, :here] = agent.goodputs(False, slice(0, here))[0]
    found[1] = agent.goodputs(True, slice(0, most))[0]
    base = float(agent.goodputs(False, slice(fair - 1, fair))[0][0])
    return found / base


def _carried(memory: Memory, jobs: Sequence[int], present: np.ndarray) -> np.ndarray:
    """Return where a search begins: what is, and what the last one ended with, for the jobs that are still there."""
    if memory.states is None:
        return present[None]
    before = {job: i for i, job in enumerate(memory.jobs)}
    states = np.zeros((len(memory.states), *present.shape), dtype=present.dtype)
    kept = [i for i, job in enumerate(jobs) if job in before]
    states[:, kept] = memory.states[:, [before[jobs[i]] for i in kept]]
    return np.concatenate([present[None], states])


def _placed(state: State, wanted: Mapping[int, Sequence[int]]) -> dict[int, Grant]:
    """Return slots: the same for whoever has as many on each host as before, others for the others."""
    grants: dict[int, Grant] = {}
    taken: set[tuple[int, int]] = set()
    for job, row in wanted.items():
        grant = state.running.get(job)
        if grant is not None and dict(grant.by_host) == {host: count for host, count in enumerate(row) if count}:
            grants[job] = grant
            taken |= {slot[:2] for slot in grant.slots}
    free = {
        host: [device for device in range(whole.gpus) if (host, device) not in taken]
        for host, whole in enumerate(state.cluster.hosts)
    }
    for job, row in wanted.items():
        if job not in grants:
            grants[job] = Grant(
                tuple(Slot(host, free[host].pop(0)) for host, count in enumerate(row) for _ in range(count))
            )
    return grants


def _tuned(state: State, number: int, grant: Grant, agent: Agent) -> Grant:
    """Return a grant with the batch that the job's agent chooses for it."""
    training = state.jobs[number].progress
    assert isinstance(training, Training)
    if training.keeps_batch:
        return grant
    workers = len(grant.slots)
    if agent.model is None:
        batch = max(agent.limits.tuned, agent.limits.least_local * workers)
    else:
        batch = int(agent.goodputs(len(grant.by_host) > 1, slice(workers - 1, workers))[1][0])
    return Grant(grant.slots, batch, grant.clock)
