"""A small network that predicts one number from features: the value of a state, or the reward of a placement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

HIDDEN = 32


@dataclass
class Regressor:
    """A layer of rectified units and a sum of these, fitted to samples by Adam.

    - `features`: how many describe a sample.
    - `seed`: of its first weights.
    """

    features: int
    seed: int = 0

    def __post_init__(self) -> None:
        import torch

        torch_draws = torch.Generator().manual_seed(self.seed)

        def drawn(rows: int, columns: int) -> Tensor:
            made: Tensor = torch.randn(rows, columns, generator=torch_draws, dtype=torch.float64) / rows**0.5
            made.requires_grad_()
            return made

        zeros = torch.zeros(HIDDEN, dtype=torch.float64, requires_grad=True)
        self._weights = [drawn(self.features, HIDDEN), zeros, drawn(HIDDEN, 1), drawn(self.features, 1)]
        self._adam = torch.optim.Adam(self._weights, lr=0.01)

    def fit(self, rows: NDArray[np.float64], values: NDArray[np.float64], rounds: int = 1) -> float:
        """Bring predictions nearer to samples, and return their mean squared error before the last round.

        - `rows`: the features of samples.
        - `values`: what is to be predicted.
        - `rounds`: how often all samples are seen.
        """
        import torch

        inputs, wanted, error = torch.from_numpy(rows), torch.from_numpy(values), 0.0
        for _ in range(rounds):
            loss = ((self._outputs(inputs) - wanted) ** 2).mean()
            self._adam.zero_grad()
            loss.backward()
            self._adam.step()
            error = float(loss.detach())
        return error

    def predict(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what is predicted.

        - `rows`: the features of samples.
        """
        import torch

        with torch.no_grad():
            found: NDArray[np.float64] = self._outputs(torch.from_numpy(rows)).numpy()
        return found

    def _outputs(self, rows: Tensor) -> Tensor:
        first, bias, second, straight = self._weights
        return ((rows @ first + bias).relu() @ second + rows @ straight)[:, 0]
