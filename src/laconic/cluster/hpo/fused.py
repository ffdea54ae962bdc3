"""Fused trials: models of one architecture that train as one, whose operators are batched over the trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from laconic.errors import ClusterError

if TYPE_CHECKING:
    from torch import Tensor, nn

Loss = Callable[..., "Tensor"]
Multipliers = Mapping[str, float]


class Fused:
    """Trials that take their steps together: every operator runs once, over the stacked parameters of all of them
    (`torch.vmap`), on one batch that is loaded once. Each trial takes the step of stochastic gradients with momentum
    that it would take alone.

    - `models`: of one architecture, each with its own weights.
    - `rates`: the learning rate of each.
    - `momenta`: of each; default: none.
    - `decays`: weight decay of each; default: none.
    - `multipliers`: what the rate of a parameter is multiplied by, by its name; default: nothing.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        rates: Sequence[float],
        momenta: Sequence[float] | None = None,
        decays: Sequence[float] | None = None,
        multipliers: Multipliers | None = None,
    ) -> None:
        import copy

        import torch

        count = len(models)
        if not count or any(len(given) != count for given in (rates, momenta or rates, decays or rates)):
            raise ClusterError("fused trials need at least one model, and a rate, a momentum and a decay for each")
        shapes = [{name: p.shape for name, p in model.named_parameters()} for model in models]
        if any(shape != shapes[0] for shape in shapes):
            raise ClusterError("fused trials have models of one architecture; fuse those apart whose shapes differ")
        self._model = copy.deepcopy(models[0])
        self.parameters: dict[str, Tensor] = {
            name: torch.stack([dict(model.named_parameters())[name].detach() for model in models]) for name in shapes[0]
        }
        self._velocities: dict[str, Tensor] = {}
        self._multipliers = multipliers or {}

        def column(values: Sequence[float] | None) -> Tensor:
            some = next(iter(self.parameters.values()))
            return torch.tensor(list(values) if values else [0.0] * count, dtype=some.dtype, device=some.device)

        self._rates, self._momenta, self._decays = column(rates), column(momenta), column(decays)

    def losses(self, loss: Loss, *batch: Tensor) -> Tensor:
        """Return the loss of each trial on one batch.

        - `loss`: a function of a model and a batch.
        - `batch`: its tensors, which all trials see.
        """
        return self._computed(self.parameters, loss, batch)

    def step(self, loss: Loss, *batch: Tensor) -> Tensor:
        """Let each trial take a step, and return the losses before it.

        - `loss`: a function of a model and a batch.
        - `batch`: its tensors, which all trials see.
        """
        import torch

        leaves = {name: p.requires_grad_() for name, p in self.parameters.items()}
        losses = self._computed(leaves, loss, batch)
        gradients = torch.autograd.grad(losses.sum(), list(leaves.values()))
        for (name, p), gradient in zip(leaves.items(), gradients, strict=True):
            self.parameters[name] = self._stepped(name, p.detach(), gradient)
        return losses.detach()

    def state_dict(self, trial: int) -> dict[str, Tensor]:
        """Return a trial's parameters, as its model alone would have them.

        - `trial`: its number.
        """
        return {name: p[trial].clone() for name, p in self.parameters.items()}

    def _stepped(self, name: str, p: Tensor, gradient: Tensor) -> Tensor:
        def wide(column: Tensor) -> Tensor:
            return column.view(-1, *[1] * (p.dim() - 1))

        gradient = gradient + wide(self._decays) * p
        before = self._velocities.get(name)
        velocity = gradient if before is None else wide(self._momenta) * before + gradient
        self._velocities[name] = velocity
        return p - wide(self._rates) * self._multipliers.get(name, 1.0) * velocity

    def _computed(self, parameters: Mapping[str, Tensor], loss: Loss, batch: tuple[Tensor, ...]) -> Tensor:
        from torch.func import functional_call, vmap

        def one(own: dict[str, Tensor]) -> Any:
            return loss(lambda *given: functional_call(self._model, own, given), *batch)

        found: Tensor = vmap(one, randomness="different")(dict(parameters))
        return found


def most_fused(one_bytes: float, two_bytes: float, gpu_bytes: float, trials_per_second: Callable[[int], float]) -> int:
    """Return how many trials to fuse: the largest power of two that memory allows and up to which the trials together
    still become faster, by a twentieth at least.

    - `one_bytes`, `two_bytes`: measured footprints of one trial and of two fused ones: each more takes the difference.
    - `gpu_bytes`: the memory that there is.
    - `trials_per_second`: a quick profile: steps a second of so many fused trials, times their number.
    """
    if one_bytes > gpu_bytes or two_bytes < one_bytes:
        raise ClusterError("one trial has to fit, and two fused ones take no less memory than one")
    fits = 1 + int((gpu_bytes - one_bytes) / (two_bytes - one_bytes)) if two_bytes > one_bytes else 1 << 16
    found, speed = 1, trials_per_second(1)
    while 2 * found <= fits and (faster := trials_per_second(2 * found)) > 1.05 * speed:
        found, speed = 2 * found, faster
    return found
