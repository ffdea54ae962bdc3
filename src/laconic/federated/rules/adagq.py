"""AdaGQ: bits of quantised changes that follow training, and with which all clients take equally long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from laconic.compression.base import Compressor
from laconic.compression.stochastic_levels import QSGD
from laconic.errors import StrategyError
from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local
from laconic.federated.messages import NUMBER_BYTES
from laconic.federated.pace import Pace, equal_times
from laconic.federated.partition import Integers
from laconic.federated.population import Floats, Population
from laconic.federated.rule import Report, Rule, Sent, Server, weighted_mean
from laconic.federated.setting import Setting
from laconic.registry import knob, technique

FEWEST, MOST = 2, 8
"""Bits of a scalar: a sign and at least one level, at most 127."""


def levels(bits: int) -> int:
    """Return the levels above zero that so many bits hold beside the sign."""
    return (1 << (bits - 1)) - 1


def assigned_bits(fixed: Floats, each: Floats, mean: float) -> Integers:
    """Return whole numbers of bits, as near to this mean as whole numbers are, with which all clients take equally long
    to within a bit, but for those that have the fewest or the most.

    - `fixed`, `each`: how long each client takes without its change, and for each bit of a scalar of its change.
    """
    exact = equal_times(fixed, each, FEWEST, MOST, mean)
    whole = np.floor(exact + 1e-9).astype(np.int64)
    missing = round(mean * len(exact)) - int(whole.sum())
    by_rest = np.argsort(-(exact - whole), kind="stable")
    whole[by_rest[:missing]] += 1
    return whole


@dataclass(frozen=True)
class Tried:
    """A mean number of bits that is tried, and what the last one has led to.

    - `mean`: the bits of a scalar in the mean of all clients.
    - `direction`: whether it last rose (1) or fell (-1).
    - `loss`, `norm`, `at`: the clients' loss, the norm of the mean change, and the time, when it was chosen.
    - `speed`: by how much the logarithm of the loss fell per second under the one before.
    """

    mean: float
    direction: int = -1
    loss: float | None = None
    norm: float = 0.0
    at: float = 0.0
    speed: float = -math.inf

    def next(self, loss: float, norm: float, now: float) -> Tried:
        """Return the mean to be tried next: further on where the loss fell faster than before, else back."""
        if self.loss is None:  # nothing to compare with yet
            return Tried(self.mean, self.direction, loss, norm, now)
        speed = math.log(self.loss / loss) / (now - self.at)
        direction = self.direction if speed >= self.speed else -self.direction
        step = min(max(abs(math.log2(norm / self.norm)), 0.25), 1.0) if norm > 0 < self.norm else 1.0
        mean = min(max(self.mean + direction * step, FEWEST), MOST)
        return Tried(mean, direction, loss, norm, now, speed)


@technique("adagq", paper="Liu, He and Cao, INFOCOM 2023")
@dataclass(frozen=True)
class AdaGQ(Rule):
    """Quantised changes, as in `adagq(16) / qsgd`, whose bits are chosen for every client and round: slow links
    get fewer, fast ones more, so that all take equally long, and their mean follows training.

    The mean moves in one direction as long as the logarithm of the loss falls faster per second than before, and turns
    where it does not; it moves by the logarithm of how much the norm of the mean change has changed, a quarter of a bit
    at least and one at most. Reading chosen: the paper's rule and formula are not known here. A client's bits are those
    of its levels, s = 2^(b−1) − 1.
    """

    mean: float = knob(4.0, low=FEWEST, high=MOST, doc="bits of a scalar in the mean of all clients at the start")
    every: int = knob(3, low=1, doc="rounds for which a mean is kept before it is judged")

    def begin(self, start: Tensor, population: Population, setting: Setting) -> Server:
        if not isinstance(setting.up, QSGD) or setting.up.coding != "fixed":
            raise StrategyError("adagq chooses the levels of qsgd: write adagq / qsgd / server")
        pace = Pace.of(population)
        training = self.epochs * pace.epoch(self.batch or np.maximum(pace.held, 1))
        by_bits = [setting.nbytes(replace(setting.up, levels=levels(bits))) for bits in (FEWEST, MOST)]
        each = (by_bits[1] - by_bits[0]) / (MOST - FEWEST)
        fixed = training + pace.transfer(by_bits[0] - FEWEST * each + NUMBER_BYTES, setting.nbytes(setting.down))
        times = fixed, np.asarray(pace.up * each)
        tried = Tried(self.mean)
        return Server(start.clone(), kept={"times": times, "tried": tried, "bits": assigned_bits(*times, self.mean)})

    def compressor(self, server: Server, client: int, written: Compressor) -> Compressor:
        assert isinstance(written, QSGD)
        return replace(written, levels=levels(int(server.kept["bits"][client])))

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        done = local.descend(received["parameters"])
        return Sent({"change": done.end - received["parameters"]}, {"loss": done.loss})

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        change = weighted_mean(reports)
        after = server.parameters + change
        if (server.version + 1) % self.every:
            return server.next(after)
        total = sum(report.samples for report in reports)
        loss = sum(report.samples * report.numbers["loss"] for report in reports) / total
        before: Tried = server.kept["tried"]
        tried = before.next(loss, float(change.norm()), max(report.arrived for report in reports))
        fixed, each = server.kept["times"]
        return server.next(after, tried=tried, bits=assigned_bits(fixed, each, tried.mean))
