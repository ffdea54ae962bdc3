"""JointSpar: only layers drawn at random before backward have their gradients computed and sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.claims import ReplicasEqual
from laconic.errors import StrategyError
from laconic.kernels import uniform
from laconic.kernels.draws import key_of
from laconic.registry import knob, technique
from laconic.sync.base import State, Sync, SyncContext
from laconic.worker import Communication


@technique("jointspar", paper="Liu, Mozafari, ICML 2022", claims=[ReplicasEqual()])
@dataclass(frozen=True)
class JointSpar(Sync):
    """Draw layers before each step; gradients of the others are neither computed nor sent, and their values stay.

    A layer (the parameters of one module) is drawn with probability p, and its gradient counts 1/p times. The p sum to
    `keep` times the number of layers and follow the gradients by mirror descent on the variance: w =
    p·exp(-rate·loss/p) for layers that were drawn, then the nearest w with that sum in [floor, 1]. With an optimizer
    that has a rate per layer (`laconic.optim.LARS`) it is JointSpar-LARS. A gradient that is not finite changes no
    probability. The loss must come from the model's `forward`, whose outputs require a gradient where nothing below
    them does. Reading chosen: all workers share the draw, so that no flags are sent, and p follows the averaged
    gradient. The loss is measured in units of its bound L²/p_min², estimated by the largest ‖g‖²/p² so far, so that
    `rate` has no unit.
    """

    keep: float = knob(
        0.5, above=0, high=1, gentler="more", doc="layers drawn in a step, on average, as a share of all"
    )
    floor: float = knob(0.001, above=0, high=1, doc="least probability of a layer")
    rate: float = knob(0.001, low=0, doc="learning rate of the probabilities; 0: they stay equal")
    has_memory: ClassVar[bool] = True
    skips: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.floor > self.keep:
            raise StrategyError(
                f"jointspar(keep={self.keep}, floor={self.floor}): every layer is drawn more often than the budget "
                "allows; write a floor below keep"
            )

    def averages_gradients(self, step: int) -> bool:
        return True

    def init(self, context: SyncContext) -> State:
        layers = 1 + max(layers_of(context.names))
        return {
            "p": torch.full((layers,), self.keep, dtype=torch.float64),
            "largest": torch.zeros((), dtype=torch.float64),
        }

    def drawn(self, context: SyncContext, state: State) -> Tensor:
        """Return which layers this step computes, as a mask; the same on every worker."""
        key = key_of(f"{context.seed}/{context.step}/jointspar")
        return uniform(key, 0, len(state["p"])).double() < state["p"]

    def weights(self, context: SyncContext, state: State) -> Sequence[float]:
        of_layer = (self.drawn(context, state) / state["p"]).tolist()
        return [of_layer[layer] for layer in layers_of(context.names)]

    @torch.no_grad()
    def after_step(self, context: SyncContext, state: State) -> Communication[State]:
        """Update the probabilities from the averaged gradients, which are g/p and show where the variance is."""
        drawn, p = self.drawn(context, state), state["p"]
        squares = _squares(context, len(p)) * drawn
        drawn &= squares.isfinite()
        squares[~drawn] = 0
        largest = torch.maximum(state["largest"], squares.max())
        if self.rate and largest > 0:
            losses = drawn * (1 - squares / largest)
            p = projected(p.log() - self.rate * losses / p, self.keep * len(p), self.floor)
        context.note(drawn=float(drawn.sum()))
        return {"p": p, "largest": largest}
        yield


def layers_of(names: Sequence[str]) -> list[int]:
    """Return the number of the module that holds each parameter; parameters of the root module are a layer each."""
    homes = [name.rpartition(".")[0] or name for name in names]
    numbers = {home: k for k, home in enumerate(dict.fromkeys(homes))}
    return [numbers[home] for home in homes]


def _squares(context: SyncContext, layers: int) -> Tensor:
    """Return the squared norm of each layer's gradient, in float64, so that the order of sums does not matter."""
    found = torch.zeros(layers, dtype=torch.float64, device=context.parameters[0].device)
    for layer, parameter in zip(layers_of(context.names), context.parameters, strict=True):
        if parameter.grad is not None:
            found[layer] += torch.linalg.vector_norm(parameter.grad, dtype=torch.float64).square()
    return found.cpu()


def projected(logs: Tensor, budget: float, floor: float) -> Tensor:
    """Return the p in [floor, 1] with sum `budget` nearest to w = exp(logs) in Kullback–Leibler divergence.

    It is min(1, max(floor, c·w)). The sum rises with c and is linear between the kinks of the entries, so c is found
    between two kinks by a quotient.
    """
    if budget >= len(logs):
        return torch.ones_like(logs)
    low = math.log(floor)
    kinks = torch.cat([low - logs, -logs]).sort().values  # values of log c
    sums = (logs + kinks[:, None]).clamp(low, 0.0).exp().sum(dim=1)
    k = int((sums < budget).sum().clamp(1, len(kinks) - 1))
    middle = logs + (kinks[k - 1] + kinks[k]) / 2
    free = (middle > low) & (middle < 0)
    if not free.any():  # the budget is met at a kink
        return (logs + kinks[k]).clamp(low, 0.0).exp()
    left = budget - float((middle >= 0).sum()) - floor * float((middle <= low).sum())
    shares = torch.softmax(logs[free], dim=0)
    p = torch.full_like(logs, floor).masked_fill_(middle >= 0, 1.0)
    p[free] = (left * shares).clamp(floor, 1.0)
    return p
