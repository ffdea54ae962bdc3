"""LARS: SGD with a learning rate for each layer, by the ratio of its weights to its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from laconic.optim.checks import require_non_negative
from laconic.optim.layerwise import Layerwise


class LARS(Layerwise):
    """SGD with momentum whose step, in each layer, is a fixed share of the weights' norm.

    lambda = trust·‖w‖ / (‖g‖ + decay·‖w‖), v = momentum·v + lr·lambda·(g + decay·w), w = w − v. The learning rate is
    inside v, as in the paper. A "layer" is a parameter tensor. Norms are those of the gradient at `step()`, which is
    the average under `bsp`, so that nothing more is sent. A group with `adapt=False` (biases, normalisation) uses
    lambda=1 and no weight decay. Sharded parameters are not supported, since they would need the norm of the whole.

    - `params`, `lr`, `momentum`, `weight_decay`: as for `torch.optim.SGD`.
    - `trust`: the share of the weights' norm that a step has at a learning rate of 1.
    - `adapt`: scale each layer's step by lambda.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        adapt: bool = True,
    ) -> None:
        require_non_negative(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust)
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": adapt}
        super().__init__(params, settings)

    def _step(self, w: torch.Tensor, g: torch.Tensor, group: dict[str, Any]) -> None:
        rate: Any = group["lr"]
        if group["adapt"]:
            decay = group["weight_decay"]
            size, slope = w.norm(), g.norm()
            local = group["trust"] * size / (slope + decay * size)
            rate = rate * torch.where((size > 0) & (slope > 0), local, torch.ones_like(local))
            g = g.add(w, alpha=decay) if decay else g
        state = self.state[w]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(w)
        w.sub_(state["momentum_buffer"].mul_(group["momentum"]).add_(g * rate))
