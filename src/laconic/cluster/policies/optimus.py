"""Optimus: GPUs go, one at a time, to the job whose remaining time falls most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cluster.decision import Decision
from laconic.cluster.marginal_gain import Demand, by_marginal_gain
from laconic.cluster.placement import emptiest, even
from laconic.cluster.policy import Policy
from laconic.cluster.state import Event, State
from laconic.cluster.training import Training
from laconic.errors import ClusterError
from laconic.registry import knob, technique


@technique(
    "optimus",
    paper="Peng et al., EuroSys 2018",
    evidence="published",
    reproduces="the completion time of every job of eight workloads, mean 5,682 s (Qiao et al., OSDI 2021, artifact)",
)
@dataclass(frozen=True)
class Optimus(Policy):
    """In each round every job gets one worker while there are GPUs, then whoever saves most time with one more gets it,
    until no GPU is left or nobody gains. Whoever gets as many workers as before stays where it is; the others are
    placed anew, the smallest first, each evenly over the fewest hosts that hold it.

    The time that a job has left is its steps times what one takes on hosts that are filled one after another, both as
    it measures them. A job with parameter servers can be handed out the same way, with `optimus_fits.fit_speed`
    and `fit_loss` for what is not known and `marginal_gain.by_marginal_gain` for servers and workers together; here
    servers need no GPU. The version with which Pollux's authors compared theirs decides every 60 s and fills the
    emptiest hosts: `optimus(60, even=false)`.
    """

    interval: float = knob(600.0, above=0, doc="seconds between decisions")
    even: bool = knob(True, doc="whether workers are spread evenly; otherwise the emptiest hosts are filled")

    @property
    def every(self) -> float:
        return self.interval

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        del events
        jobs = list(state.active)
        each = max(host.gpus for host in state.cluster.hosts)
        free = state.room.gpus + sum(len(grant.slots) for grant in state.running.values())
        counts = by_marginal_gain([_demand(state, job, each) for job in jobs], [free])
        wanted = {job: count for job, (count,) in zip(jobs, counts, strict=True) if count}
        grants = {job: grant for job, grant in state.running.items() if wanted.get(job) == len(grant.slots)}
        room = state.room.copy()
        for job, grant in state.running.items():
            if job not in grants:
                room.give(state.jobs[job], grant)
        for job in sorted(wanted, key=lambda job: (wanted[job], job)):
            if job not in grants:
                place = (even(room, wanted[job]) if self.even else None) or emptiest(room, wanted[job])
                if place is not None:
                    grants[job] = place
                    room.take(state.jobs[job], place)
        return Decision(grants), memory


def _demand(state: State, number: int, each: int) -> Demand:
    job = state.jobs[number]
    training = job.progress
    if not isinstance(training, Training):
        raise ClusterError(f"{job.name} does not say what a step takes on other workers; Optimus runs trainings")
    application, batch = training.application, training.batch
    steps = application.steps_left(batch, float(state.done(number)))

    def seconds(counts: tuple[int, ...]) -> float:
        whole, rest = divmod(counts[0], each)
        return steps * application.step_seconds((each,) * whole + ((rest,) if rest else ()), batch)

    return Demand(seconds, [[1.0]], (job.most,))
