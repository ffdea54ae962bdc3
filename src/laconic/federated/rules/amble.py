"""AMBLE: fast devices do more epochs with larger batches while they would wait for the slowest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from laconic.federated.local import Work
from laconic.federated.pace import Pace
from laconic.federated.partition import Integers
from laconic.federated.population import Floats, Population
from laconic.federated.rule import Rule, Server
from laconic.federated.setting import Setting
from laconic.registry import knob, technique


@dataclass(frozen=True, eq=False)
class Plan:
    """What each device does in a round, by its number: epochs, the samples of a step, and how long all of it takes."""

    epochs: Integers
    batch: Integers
    seconds: Floats
    deadline: float


def filled(pace: Pace, transfer: Floats, batch: int, largest: int) -> Plan:
    """Return epochs and batches that fill the time of the slowest device, which does one epoch of the base batch.

    - `transfer`: how long each device receives and sends.
    - `batch`: the base batch.
    - `largest`: the most samples of a step.
    """
    deadline = float((pace.epoch(batch) + transfer).max())

    def fitting(size: Integers) -> Integers:
        spare = (deadline - transfer) * (1 + 1e-12)  # the slowest has time for its own epoch, whatever is rounded
        return np.maximum(1, np.floor(spare / pace.epoch(size))).astype(np.int64)

    epochs, chosen = fitting(base := np.full(len(transfer), batch)), base.copy()
    most = np.minimum(np.minimum(largest, pace.held), base * epochs)
    size = 2 * base
    while (size <= most).any():
        more = fitting(size)
        better = (size <= most) & (more > epochs)
        epochs, chosen = np.where(better, more, epochs), np.where(better, size, chosen)
        size = 2 * size
    return Plan(epochs, chosen, epochs * pace.epoch(chosen) + transfer, deadline)


@technique("amble", paper="Park et al., Journal of Parallel and Distributed Computing 170, 2022")
@dataclass(frozen=True)
class Amble(Rule):
    """Synchronous rounds in which nobody waits: a round lasts as long as the slowest device takes for one epoch of the
    base batch, and every faster one does as many epochs as fit, with a rate in proportion to its batch.

    Reading chosen: a batch is doubled where steps cost time of their own, so that more epochs fit, up to as many times
    the base batch as epochs of it would have fitted: slow devices keep small batches, and equal ones do FedAvg's single
    epoch. The server weighs by samples alone, so that devices that train more pull more: where each of eight
    devices held two labels of the digits, it took 1.8 to 2.6 times as long as FedAvg to 90 %; on even data, and with
    labels divided among 20 devices by Dirichlet draws of concentration 0.5, it was faster (about half the time).
    """

    batch: int = knob(10, low=1, doc="the base batch: samples of the slowest device's step")
    largest: int = knob(160, low=1, doc="samples of a step at most")

    def begin(self, start: Tensor, population: Population, setting: Setting) -> Server:
        pace = Pace.of(population)
        transfer = pace.transfer(setting.nbytes(setting.up), setting.nbytes(setting.down))
        return Server(start.clone(), kept={"plan": filled(pace, transfer, self.batch, self.largest)})

    def work(self, server: Server, client: int, population: Population, rate: float) -> Work:
        plan: Plan = server.kept["plan"]
        batch = int(plan.batch[client])
        return Work(int(plan.epochs[client]), batch, rate * batch / self.batch)
