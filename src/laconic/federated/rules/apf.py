"""Adaptive parameter freezing: scalars that only swing are neither trained nor sent for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from laconic.errors import StrategyError
from laconic.federated.client_memory import Memory
from laconic.federated.freezing import Freezing, Longer
from laconic.federated.layout import Vectors
from laconic.federated.local import Local
from laconic.federated.population import Population
from laconic.federated.rule import Report, Rule, Sent, Server, weighted_mean
from laconic.kernels.draws import key_of
from laconic.registry import knob, technique


@technique(
    "apf",
    paper="Chen et al., ICDCS 2021",
    evidence="fixture",
    reproduces="apf.npz, recorded from the authors' program: values, masks, lengths and averages, as `apf(every=1)`",
)
@dataclass(frozen=True)
class APF(Rule):
    """Freeze stable scalars: every few rounds each active scalar's changes are judged, and one that swings around a
    value rests, longer each time it is found stable, half as long when it is not.

    Clients put resting scalars back after every step, send the others packed, and find the masks by themselves: each
    has seen the same models, so that no mask is sent. All clients take part in every round. Where more than 80 % rest,
    the threshold is halved.

    The paper's saving of 60 % was not found on digits. Among five clients 9 % of the bytes of 400 rounds are saved, and
    13 % of 300 rounds with a large rate and eight hidden units, where 23 % rest in the last rounds. It takes long until
    scalars swing: two clients with such a model save 28 % of 3,000 rounds, at an accuracy lower by 0.6 points.
    """

    rests_again: ClassVar[bool] = False
    """Whether chance may also let a scalar rest whose rest has just ended."""

    every: int = knob(1, low=1, doc="rounds between checks")
    threshold: float = knob(0.05, low=0.0, high=1.0, doc="effective perturbation below which a scalar is stable")
    decay: float = knob(0.99, low=0.0, high=1.0, doc="how much of the last average of changes is kept")

    def init(self, start: Tensor, population: Population) -> Server:
        if self.clients != len(population):
            raise StrategyError(
                f"clients of {self.name} know by themselves what rests, from every round; all {len(population)} take "
                f"part: write {self.name}(clients={len(population)})"
            )
        return Server(start.clone(), kept={"freezing": Freezing.begin(start, self.threshold)})

    def down(self, server: Server) -> Vectors:
        """Return the scalars that were active in the last round: the whole model before the first."""
        if not server.version:
            return {"active": server.parameters}
        return {"active": server.parameters[server.kept["sent"]]}

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        known = self._seen(memory, received["active"])
        active, start = known.active, known.value

        def put_back(parameters: Tensor) -> None:
            parameters.copy_(torch.where(active, parameters, start))

        end = local.descend(start, settle=put_back).end
        memory.clear()
        memory.update(known.tensors())
        return Sent({"active": end[active]})

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        before: Freezing = server.kept["freezing"]
        known = self._checked(before.taken(weighted_mean(reports, "active")))
        return server.next(known.value, freezing=known, sent=before.active)

    def lengths(self, server: Server, sent: Vectors) -> set[int]:
        freezing: Freezing = server.kept["freezing"]
        return {int(freezing.active.sum())}

    def _seen(self, memory: Memory, received: Tensor) -> Freezing:
        """Return what a client knows after it has received the last round's scalars, or its first model."""
        if not memory:
            return Freezing.begin(received, self.threshold)
        return self._checked(Freezing.of(memory).taken(received))

    def _checked(self, known: Freezing) -> Freezing:
        """Return what is known at the end of a round: judged, where a check is due."""
        return known if known.rounds % self.every else known.judged(self.decay, self._longer(), self.rests_again)

    def _longer(self) -> Longer | None:
        """Return for how long scalars rest by chance."""
        return None


@technique("apf_sharp", paper="Chen et al., IEEE TPDS 2023 (APF#)")
@dataclass(frozen=True)
class APFSharp(APF):
    """APF that also lets scalars rest by chance: at every check, each that would be active rests for one period with
    some probability. The draws are everybody's own, of one seed.

    Reading chosen: only scalars that would be active are drawn for; in the authors' program also those that rest
    already.
    """

    rests_again: ClassVar[bool] = True

    probability: float = knob(0.5, low=0.0, high=1.0, doc="with which an active scalar rests for a period")

    def _longer(self) -> Longer | None:
        return lambda check, numel: (_uniform("rests", check, numel) < self.probability).long()


@technique("apf_pp", paper="Chen et al., IEEE TPDS 2023 (APF++)")
@dataclass(frozen=True)
class APFPlusPlus(APF):
    """APF# whose chances grow: at check r an active scalar rests with probability min(q, a r), for a number of periods
    that is drawn evenly from 1 to 1 + ⌊b r⌋.

    The paper says that both increase; their laws and constants are chosen here.
    """

    growth: float = knob(1 / 4000, low=0.0, doc="a, by how much the probability grows with every check")
    longer: float = knob(1 / 20, low=0.0, doc="b, by how much the longest rest grows with every check")
    most: float = knob(0.9, low=0.0, high=1.0, doc="q, the largest probability")

    def chance(self, check: int) -> tuple[float, int]:
        """Return with which probability an active scalar rests after this check, and for how long at most."""
        return min(self.most, self.growth * check), 1 + int(self.longer * check)

    def _longer(self) -> Longer | None:
        def draw(check: int, numel: int) -> Tensor:
            probability, longest = self.chance(check)
            rests = _uniform("rests", check, numel) < probability
            return torch.where(rests, 1 + (_uniform("for", check, numel) * longest).long(), 0)

        return draw


def _uniform(what: str, check: int, numel: int) -> Tensor:
    """Return numbers between 0 and 1, the same for everybody."""
    return torch.from_numpy(np.random.default_rng(key_of(f"{what}/{check}") % 2**63).random(numel))
