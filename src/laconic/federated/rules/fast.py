"""FAST: how many samples and steps each device is given is learned on line, within budgets of time and effort."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local, Work
from laconic.federated.partition import Integers
from laconic.federated.population import Floats, Population
from laconic.federated.rule import Report, Rule, Sent, Server, weighted_sum
from laconic.federated.setting import Setting
from laconic.registry import knob, technique


@dataclass(frozen=True, eq=False)
class Decisions:
    """What every device is to do, by its number, and what its doing costs.

    - `fraction`: the share of its samples that is drawn for a round.
    - `steps`: its local steps, before they are rounded.
    - `time_price`, `effort_price`: multipliers, which rise while a device takes longer, or computes longer, than its
      part of the budget for a round.
    - `effort`: the seconds that each has computed so far.
    - `seconds`: those that all rounds have taken.
    """

    fraction: Floats
    steps: Floats
    time_price: Floats
    effort_price: Floats
    effort: Floats
    seconds: float = 0.0


@technique("fast", paper="Wang et al., IEEE TPDS 34, 2023")
@dataclass(frozen=True)
class Fast(Rule):
    """Every device has its own share of samples to draw and its own number of local steps, which are learned while the
    model is trained, within a budget of `seconds` for all rounds and one of `effort` for each device.

    All that is known here of the paper is how a survey describes it: the updates below are a generic reading of on-line
    learning under budgets, not the authors' algorithm. After every round the decisions of the devices that reported are
    moved along the gradient of a Lagrangian, in logarithms, and are cut off at their bounds:

    - log q_i by u_i·log(1/q_i) − c_i, where q_i is the fraction of samples and u_i the device's loss at the common
      model over the mean loss: more samples gain less and less, and devices whose data is less represented draw more;
    - log τ_i by log(`longest`/τ_i) − c_i, where τ_i is the number of steps: so do more steps, which lead astray;
    - c_i is the sum over both budgets of the multiplier times the training time over the allowance of a round, a
      `rounds`-th part of the budget; each multiplier rises with what was used above the allowance, and falls to 0 with
      what was left.

    The mean of changes is weighted by the samples that were drawn. A device whose effort is spent takes part no more,
    and training ends when the seconds are spent or nobody is left: both budgets hold within a round's cost. With `step`
    and `dual` 0 this is FedAvg with uniform sampling and a fixed number of steps.
    """

    batch: int = knob(0, low=0, doc="samples of a client's step; 0 for all that were drawn")
    seconds: float = knob(60.0, above=0.0, doc="seconds that all rounds may take")
    effort: float = knob(math.inf, above=0.0, doc="seconds that each device may compute")
    rounds: int = knob(100, low=1, doc="rounds over which the budgets are spread")
    fraction: float = knob(0.5, above=0.0, high=1.0, doc="fraction of the samples that is drawn in the first round")
    steps: int = knob(5, low=1, doc="local steps of the first round")
    longest: int = knob(20, low=1, doc="local steps at most")
    least: float = knob(0.05, above=0.0, high=1.0, doc="fraction of a device's samples that is drawn at least")
    step: float = knob(0.1, low=0.0, doc="how fast decisions are moved")
    dual: float = knob(0.1, low=0.0, doc="how fast multipliers are moved")

    def begin(self, start: Tensor, population: Population, setting: Setting) -> Server:
        each = np.ones(len(population))
        decisions = Decisions(self.fraction * each, self.steps * each, 0 * each, 0 * each, 0 * each)
        return Server(start.clone(), kept={"decisions": decisions})

    def _free(self, server: Server) -> Integers:
        """Return the devices whose effort is not spent."""
        return np.flatnonzero(server.kept["decisions"].effort < self.effort)

    def reports(self, server: Server) -> int:
        return max(1, min(self.clients, len(self._free(server))))

    def select(self, server: Server, reachable: Integers, count: int, draw: np.random.Generator) -> Integers:
        free = reachable[np.isin(reachable, self._free(server))]
        return super().select(server, free, min(count, len(free)), draw)

    def is_finished(self, server: Server) -> bool:
        return server.kept["decisions"].seconds >= self.seconds or not len(self._free(server))

    def work(self, server: Server, client: int, population: Population, rate: float) -> Work:
        decisions: Decisions = server.kept["decisions"]
        drawn = max(1, round(float(decisions.fraction[client]) * len(population.shards[client])))
        return Work(self.epochs, self.batch, rate, steps=max(1, round(float(decisions.steps[client]))), drawn=drawn)

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        start = received["parameters"]
        _, loss = local.trainer.gradient(start, local.samples)
        drawn = min(len(local.samples), local.work.drawn or len(local.samples))
        change = local.descend(start).end - start
        return Sent({"change": change}, {"loss": loss, "drawn": float(drawn)})

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        drawn = sum(report.numbers["drawn"] for report in reports)
        change = weighted_sum(reports, [report.numbers["drawn"] / drawn for report in reports])
        return server.next(server.parameters + change, decisions=self.moved(server.kept["decisions"], reports))

    def moved(self, now: Decisions, reports: Sequence[Report]) -> Decisions:
        """Return the decisions after a round, and what they cost."""
        who = np.array([report.client for report in reports])
        losses, took, training = (
            np.array([value(report) for report in reports])
            for value in (lambda r: r.numbers["loss"], lambda r: r.seconds, lambda r: r.training)
        )
        useful = losses / max(float(losses.mean()), 1e-30)
        each_round, each_effort = self.seconds / self.rounds, self.effort / self.rounds
        fraction, steps, time_price, effort_price, effort = (
            x.copy() for x in (now.fraction, now.steps, now.time_price, now.effort_price, now.effort)
        )
        cost = time_price[who] * training / each_round + effort_price[who] * training / each_effort
        gain = useful * np.log(1 / fraction[who]), np.log(self.longest / steps[who])
        fraction[who] = np.clip(fraction[who] * np.exp(self.step * (gain[0] - cost)), self.least, 1.0)
        steps[who] = np.clip(steps[who] * np.exp(self.step * (gain[1] - cost)), 1.0, self.longest)
        time_price[who] = np.maximum(0, time_price[who] + self.dual * (took / each_round - 1))
        effort_price[who] = np.maximum(0, effort_price[who] + self.dual * (training / each_effort - 1))
        effort[who] += training
        return replace(
            now,
            fraction=fraction,
            steps=steps,
            time_price=time_price,
            effort_price=effort_price,
            effort=effort,
            seconds=now.seconds + float(took.max()),
        )
