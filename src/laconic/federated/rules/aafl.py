"""AAFL: the server merges as soon as a share of the clients has reported, and learns which share is best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from laconic.errors import StrategyError
from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local
from laconic.federated.messages import NUMBER_BYTES
from laconic.federated.pace import Pace
from laconic.federated.population import Population
from laconic.federated.rule import Report, Rule, Sent, Server, weighted_sum
from laconic.federated.setting import Setting
from laconic.registry import knob, technique

SHARES = (1.0, 0.75, 0.5, 0.25, 0.1)
"""Shares of the clients among which the server chooses, in the order in which it tries them."""


@dataclass(frozen=True)
class Learned:
    """What the server has learned of each share: the mean fall of the loss's logarithm per second, and how often it
    was tried."""

    values: tuple[float, ...] = (0.0,) * len(SHARES)
    counts: tuple[int, ...] = (0,) * len(SHARES)

    def ranked(self, explore: float, draw: np.random.Generator) -> list[int]:
        """Return the shares, the one to be taken first: those that were not tried, then the best, or by chance any."""
        best = sorted(range(len(SHARES)), key=lambda i: (self.counts[i] > 0, -self.values[i]))
        if all(self.counts) and draw.random() < explore:
            tried = int(draw.integers(len(SHARES)))
            return [tried, *(i for i in best if i != tried)]
        return best

    def after(self, share: int, reward: float) -> Learned:
        """Return what is known after a share was tried: means forget what is old."""
        values, counts = list(self.values), list(self.counts)
        counts[share] += 1
        values[share] += max(1 / counts[share], 0.2) * (reward - values[share])
        return Learned(tuple(values), tuple(counts))


@technique("aafl", paper="Liu et al., IEEE TMC 22(2), 2023")
@dataclass(frozen=True)
class AAFL(Rule):
    """Semi-asynchronous merging: the server steps with the first ⌈α N⌉ reports of its N clients. Their senders alone
    get the new model; the others go on and count in a later step, with a weight of samples/√(1 + age).

    α is fixed, or, with `alpha=0`, learned during the run from how fast the loss falls: with α = 1 the rule is FedAvg
    of all. No step is begun that would end after the budget of seconds, as clients' speeds and links predict it, or
    send more than that of bytes. Readings chosen: changes are added to the server's model; the learner estimates the
    value of five shares, without the deep network and the experience replay of the paper. It learns within one run,
    which is too short for it: digits among 20 clients of speeds 1:10 that change at random took 5.2 s to 90 %, where a
    quarter of the clients throughout took 1.8 s and all of them 17.7 s; within 10 % of the best was wanted. A step of
    all takes as long as nine of a quarter, so that trying it once costs what is to be saved. A regression of clients'
    falls on shares, with Thompson's draws, was no better: losses tell too late what a share has done.
    """

    asynchronous: ClassVar[bool] = True
    waits: ClassVar[bool] = True

    alpha: float = knob(0.0, low=0.0, high=1.0, doc="share of the clients whose reports make a step; 0 learns it")
    explore: float = knob(0.1, low=0.0, high=1.0, doc="with which probability a share is tried by chance")
    seconds: float = knob(math.inf, above=0.0, doc="seconds that may be spent")
    traffic: float = knob(math.inf, above=0.0, doc="bytes that all clients may send together")

    def begin(self, start: Tensor, population: Population, setting: Setting) -> Server:
        if self.clients != len(population):
            raise StrategyError(f"all clients of aafl are at work: write aafl(clients={len(population)})")
        pace, up = Pace.of(population), setting.nbytes(setting.up)
        training = self.epochs * pace.epoch(self.batch or np.maximum(pace.held, 1))
        takes = training + pace.transfer(up + NUMBER_BYTES, setting.nbytes(setting.down))
        kept = {
            "takes": takes,
            "due": takes.copy(),
            "bytes": up,
            "spent": 0,
            "now": 0.0,
            "losses": np.full(len(population), math.nan),
            "learned": Learned(),
        }
        return Server(start.clone(), kept={**kept, "share": self._chosen(kept, 0)})

    def reports(self, server: Server) -> int:
        return self._count(server.kept["share"])

    def is_finished(self, server: Server) -> bool:
        return server.kept["share"] is None

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        done = local.descend(received["parameters"])
        return Sent({"change": done.end - received["parameters"]}, {"loss": done.loss})

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        kept, now = dict(server.kept), max(report.arrived for report in reports)
        each = [report.samples * (1 + server.version - report.version) ** -0.5 for report in reports]
        merged = server.parameters + weighted_sum(reports, [weight / sum(each) for weight in each])
        kept["due"], kept["losses"] = kept["due"].copy(), kept["losses"].copy()
        before = float(np.nanmean(kept["losses"])) if server.version else math.nan
        for report in reports:
            kept["due"][report.client] = now + kept["takes"][report.client]
            kept["losses"][report.client] = report.numbers["loss"]
        if not self.alpha and before > 0:
            fall = math.log(before / max(float(np.nanmean(kept["losses"])), 1e-30))
            kept["learned"] = kept["learned"].after(SHARES.index(kept["share"]), fall / (now - kept["now"]))
        kept["spent"], kept["now"] = kept["spent"] + len(reports) * kept["bytes"], now
        kept["share"] = self._chosen(kept, server.version + 1)
        return replace(server, parameters=merged, version=server.version + 1, kept=kept)

    def _count(self, share: float) -> int:
        return max(1, math.ceil(round(share * self.clients, 9)))

    def _chosen(self, kept: dict[str, Any], version: int) -> float | None:
        """Return the share of the next step: the first for whose step the budgets have room; none where none fits."""
        draw = np.random.default_rng([0xAAF1, version])
        shares = [self.alpha] if self.alpha else [SHARES[i] for i in kept["learned"].ranked(self.explore, draw)]
        due = np.sort(kept["due"])
        for share in shares:
            count = self._count(share)
            if due[count - 1] <= self.seconds and kept["spent"] + count * kept["bytes"] <= self.traffic:
                return share
        return None
