"""FedNova: changes are normalised by how much each client trained, so that busy clients do not pull the model aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local, Work, held_near
from laconic.federated.population import Population
from laconic.federated.rule import Ranges, Report, Rule, Sent, Server, about, weighted_sum
from laconic.registry import knob, technique


@technique("fednova", paper="Wang et al., NeurIPS 2020")
@dataclass(frozen=True)
class FedNova(Rule):
    """Average directions in place of changes: each client's change is divided by ‖a‖₁, the sum of the weights with
    which its gradients enter it, and the mean is multiplied by the mean of these.

    For plain steps ‖a‖₁ is their number τ; with momentum ρ it is (τ − ρ (1 − ρ^τ)/(1 − ρ))/(1 − ρ); with a proximal
    term μ it is (1 − (1 − η μ)^τ)/(η μ). A client sends it as a number.
    """

    mu: float = knob(0.0, low=0.0, doc="μ of a proximal term, as in FedProx")
    momentum: float = knob(0.0, low=0.0, high=1.0, doc="momentum of a client's steps")

    def work(self, server: Server, client: int, population: Population, rate: float) -> Work:
        return Work(self.epochs, self.batch, rate, self.momentum)

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        start = received["parameters"]
        done = local.descend(start, held_near(start, self.mu) if self.mu else None)
        weight = accumulated(done.steps, local.work.rate, self.mu, self.momentum)
        return Sent({"change": (done.end - start) / weight}, {"weight": weight})

    def ranges(self, work: Work, samples: int) -> Ranges:
        return {"weight": about(accumulated(work.steps_made(samples), work.rate, self.mu, work.momentum))}

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        total = sum(report.samples for report in reports)
        shares = [report.samples / total for report in reports]
        effective = sum(share * report.numbers["weight"] for share, report in zip(shares, reports, strict=True))
        return server.next(server.parameters + effective * weighted_sum(reports, shares))


def accumulated(steps: int, rate: float, mu: float = 0.0, momentum: float = 0.0) -> float:
    """Return ‖a‖₁ of so many steps: the sum of the weights with which their gradients enter the change, over the rate.

    With both a proximal term and momentum the recursion of the weights is followed.
    """
    if mu and momentum:
        pulled, change, direction = rate * mu, 0.0, 0.0
        for _ in range(steps):  # every gradient is 1
            direction = momentum * direction + 1.0 - pulled * change
            change += direction
        return change
    if mu:
        return float((1 - (1 - rate * mu) ** steps) / (rate * mu))
    if momentum:
        return float((steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum))
    return float(steps)
