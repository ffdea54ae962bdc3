"""Local steps whose number is chosen in every round so that a budget of time goes furthest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local, Work
from laconic.federated.population import Population
from laconic.federated.rule import NOT_NEGATIVE, Ranges, Report, Rule, Sent, Server, about, weighted_mean
from laconic.registry import knob, technique


@dataclass(frozen=True)
class Constants:
    """What a bound of the loss depends on, as clients have found it.

    - `rho`: how fast losses change with parameters.
    - `beta`: how fast gradients do.
    - `delta`: how far clients' gradients are from their mean: 0 where all data is alike.
    """

    rho: float
    beta: float
    delta: float

    def drift(self, steps: int, rate: float) -> float:
        """Return h(τ), how far local steps lead away from central ones: nothing for one step."""
        if not self.delta or not self.beta:
            return 0.0
        growth = (rate * self.beta + 1) ** steps - 1
        return self.delta / self.beta * growth - rate * self.delta * steps


def best_steps(
    constants: Constants, rate: float, phi: float, step: float, round_cost: float, budget: float, most: int
) -> int:
    """Return the number of local steps, at most so many, that makes the bound of the loss least within a budget.

    - `rate`: the clients' learning rate.
    - `phi`: a constant of the bound, which weighs drift against the number of steps.
    - `step`, `round_cost`: what a local step costs, and a round beside them.
    - `budget`: what may be spent in all.
    """
    left = budget - round_cost - step

    def bound(steps: int) -> float:
        spent = (step * steps + round_cost) / (left * steps)
        drift = constants.rho * constants.drift(steps, rate)
        half = spent / (2 * rate * phi)
        return float(half + (half**2 + drift / (rate * phi * steps)) ** 0.5 + drift)

    return min(range(1, most + 1), key=bound)


@technique(
    "adaptive_fl",
    paper="Wang et al., IEEE JSAC 2019",
    evidence="fixture",
    reproduces="adaptive_fl.json, recorded from the authors' program: every number of steps, as `adaptive_fl`",
)
@dataclass(frozen=True)
class AdaptiveFL(Rule):
    """As many local steps in every round as a bound of the loss advises, until a budget of seconds is spent.

    Clients tell how fast their loss and gradient change between their own last model and the new one, and send their
    gradient at it; the server estimates the constants of the bound, and how long steps and rounds take from the
    reports. The last round has as many steps as still fit. The model that comes out is the one with the least loss.
    """

    batch: int = knob(0, low=0, doc="samples of a client's step; 0 for all of them")
    budget: float = knob(60.0, above=0.0, doc="seconds that may be spent")
    phi: float = knob(0.025, above=0.0, doc="a constant of the bound, which weighs drift against the number of steps")
    longest: int = knob(100, low=1, doc="steps of a round at most")

    def init(self, start: Tensor, population: Population) -> Server:
        return Server(start.clone(), kept={"steps": 1, "spent": 0.0, "least": float("inf"), "best": start.clone()})

    def work(self, server: Server, client: int, population: Population, rate: float) -> Work:
        return Work(self.epochs, self.batch, rate, steps=server.kept["steps"])

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        start = received["parameters"]
        gradient, loss = local.trainer.gradient(start, local.samples)
        numbers = {"loss": loss, "steps": float(local.work.steps or 1), "rate": local.work.rate}
        if "end" in memory and float(distance := (memory["end"] - start).norm()) > 0:
            own, own_loss = local.trainer.gradient(memory["end"], local.samples)
            numbers["rho"] = abs(own_loss - loss) / float(distance)
            numbers["beta"] = float((own - gradient).norm() / distance)
        memory["end"] = local.descend(start).end
        return Sent({"change": memory["end"] - start, "gradient": gradient}, numbers)

    def ranges(self, work: Work, samples: int) -> Ranges:
        return {
            "steps": about(work.steps_made(samples)),
            "rate": about(work.rate),
            "rho": NOT_NEGATIVE,
            "beta": NOT_NEGATIVE,
        }

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        loss, kept = _mean(reports, "loss"), dict(server.kept)
        if loss < kept["least"]:  # of the model that clients were sent
            kept["least"], kept["best"] = loss, server.parameters
        kept["spent"] += max(report.seconds for report in reports)
        kept["each"] = [
            (report.training / report.numbers["steps"], report.seconds - report.training) for report in reports
        ]
        if all("rho" in report.numbers for report in reports):
            kept["steps"] = self._advised(reports, kept)
        kept["steps"] = self._fitting(kept)
        return server.next(server.parameters + weighted_mean(reports), **kept)

    def is_finished(self, server: Server) -> bool:
        return int(server.kept["steps"]) == 0

    def model(self, server: Server) -> Tensor:
        best: Tensor = server.kept["best"]
        return best

    def _advised(self, reports: Sequence[Report], kept: dict[str, Any]) -> int:
        mean = weighted_mean(reports, "gradient")
        apart = [float((report.vectors["gradient"] - mean).norm()) for report in reports]
        total = sum(report.samples for report in reports)
        delta = sum(report.samples * far for report, far in zip(reports, apart, strict=True)) / total
        constants = Constants(_mean(reports, "rho"), _mean(reports, "beta"), delta)
        slowest, rest = _seconds(kept, 1) - _seconds(kept, 0), _seconds(kept, 0)
        most = min(10 * int(reports[0].numbers["steps"]), self.longest)
        if self.budget <= slowest + rest:
            return 1
        return best_steps(constants, reports[0].numbers["rate"], self.phi, slowest, rest, self.budget, most)

    def _fitting(self, kept: dict[str, Any]) -> int:
        """Return so many of the advised steps as the budget has room for; none, where it has none for one."""
        left, steps = self.budget - kept["spent"], kept["steps"]
        return next((n for n in range(steps, 0, -1) if _seconds(kept, n) <= left), 0)


def _seconds(kept: dict[str, Any], steps: int) -> float:
    """Return how long a round of so many steps takes, as the slowest client does."""
    each: list[tuple[float, float]] = kept["each"]
    return max(steps * step + rest for step, rest in each)


def _mean(reports: Sequence[Report], number: str) -> float:
    """Return the mean of a number, weighted by samples."""
    total = sum(report.samples for report in reports)
    return sum(report.samples * report.numbers[number] for report in reports) / total
