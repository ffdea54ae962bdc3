"""What a user of the planner wants: what to minimise, how much more loss is accepted, what time and bytes cost."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.planner.deployment import Deployment
from laconic.planner.step_price import StepPrice
from laconic.planner.values import Objective, PlanError

_IDLE_POWER = 0.3  # the power of a waiting worker as a share of a busy one's


@dataclass(frozen=True)
class Preferences:
    """What the user wants: the objective to minimise, how much more loss is accepted, and the price of time and bytes.

    Without a loss budget only strategies with the same mathematics as synchronous SGD are admitted, and 16-bit
    gradients, which the baseline has too, unless everything must be `exact`.
    """

    objective: Objective = "time"
    loss_budget: float = 0.0
    exact: bool = False
    dollars_per_hour: float | None = None  # of one worker
    dollars_per_gigabyte: float = 0.0
    watts: float | None = None  # of one busy worker

    def __post_init__(self) -> None:
        if self.objective == "cost" and self.dollars_per_hour is None:
            raise PlanError("--objective cost needs what a worker costs: add --price DOLLARS (an hour)")
        if self.objective == "energy" and self.watts is None:
            raise PlanError("--objective energy needs what a worker draws: add --watts W")
        if not self.loss_budget >= 0:
            raise PlanError(f"a loss budget is how much more loss is accepted, as 0.5%, not {self.loss_budget:g}")

    def dollars(self, deployment: Deployment, priced: StepPrice) -> float | None:
        """Return the price in dollars of a step on all workers, or None if a worker's price is unknown."""
        if self.dollars_per_hour is None:
            return None
        each = priced.seconds / 3600 * self.dollars_per_hour + priced.sent_bytes / 1e9 * self.dollars_per_gigabyte
        return float(deployment.workers * each)

    def joules(self, deployment: Deployment, priced: StepPrice) -> float | None:
        """Return the energy in joules of a step on all workers, or None if a worker's power is unknown."""
        if self.watts is None:
            return None
        return float(deployment.workers * self.watts * (priced.seconds - (1 - _IDLE_POWER) * priced.exposed_seconds))

    def amount(self, deployment: Deployment, priced: StepPrice) -> float:
        """Return the quantity to minimise: a step's seconds, bytes, dollars or joules, by the objective."""
        if self.objective == "bytes":
            return priced.sent_bytes
        own = {"cost": self.dollars, "energy": self.joules}.get(self.objective)
        return priced.seconds if own is None else own(deployment, priced) or 0.0
