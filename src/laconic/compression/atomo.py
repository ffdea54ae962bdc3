"""ATOMO: a few atoms of a gradient, sampled so that the mean is right and the variance is least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.claims import Unbiased
from laconic.compression.codec import Codec
from laconic.compression.payload import pack, unpack
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


def keep_probabilities(sizes: Tensor, budget: float) -> Tensor:
    """Return the probability with which to keep each of these magnitudes, `budget` of them in the mean.

    Those that would need a probability above 1 are kept for certain; the others share the rest in proportion.
    """
    falling, order = sizes.double().sort(descending=True)
    rest = falling.flip(0).cumsum(0).flip(0)  # from each one to the last
    left = budget - torch.arange(len(sizes), device=sizes.device)
    certain = int((falling * left > rest).long().cumprod(0).sum())
    kept = torch.ones_like(falling)
    if certain < len(sizes) and float(rest[certain]) > 0:
        kept[certain:] = (max(0.0, budget - certain) * falling[certain:] / rest[certain]).clamp(max=1.0)
    return torch.empty_like(kept).scatter_(0, order, kept)


@technique(
    "atomo",
    paper="Wang et al., NeurIPS 2018",
    claims=[Unbiased()],
    evidence="fixture",
    reproduces="atomo.npz: probabilities, choices and decoded matrices from its draws, as `atomo(1)` to `atomo(3)`",
    formula="Σ_j b_j·(σ_j/p_j)·u_j·v_j', b_j = 1 with chance p_j = min(1, λσ_j), Σ p_j = budget",
)
@dataclass(frozen=True)
class Atomo(Codec):
    """A random few singular vectors of the gradient's matrix, kept with probability p and divided by it.

    p is proportional to the singular value and at most 1, such that `budget` of them are kept in the mean. Atoms that
    are coordinates are the word `gspar`. Reading chosen: convolutions become matrices as in the published program, and
    where no atom was drawn nothing is drawn again, which keeps the mean right. A tensor that contains a value that is
    not finite decodes to values that are not finite.
    """

    cost: ClassVar[str] = "matmul"
    ragged: ClassVar[bool] = True
    budget: int = knob(3, low=1, gentler="more", doc="singular vectors that are kept, in the mean")

    def accepts(self, spec: TensorSpec) -> bool:
        return super().accepts(spec) and len(spec.shape) > 1 and min(matrix_sides(spec.shape)) > self.budget

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        matrix = x.reshape(matrix_sides(tuple(x.shape)))
        if not bool(matrix.isfinite().all()):
            return pack(torch.full((1 + sum(matrix.shape),), torch.nan, device=x.device))
        u, sizes, v = torch.linalg.svd(matrix, full_matrices=False)
        return atoms(u, sizes, v, self.budget, kernels.uniform(meet.key(), 0, len(sizes), x.device))

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        rows, columns = matrix_sides(tuple(shape))
        (flat,) = unpack(payload, (torch.float32, -1))
        sizes, u, v = flat.view(-1, 1 + rows + columns).split([1, rows, columns], dim=1)
        product: Tensor = (u * sizes).T @ v
        return product.view(shape)

    def variance(self, spec: TensorSpec) -> float | None:
        return max(0.0, min(matrix_sides(spec.shape)) / self.budget - 1)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the bytes of a message in which every atom is drawn."""
        rows, columns = matrix_sides(spec.shape)
        return 4 * min(rows, columns) * (1 + rows + columns)


def atoms(u: Tensor, sizes: Tensor, v: Tensor, budget: float, draws: Tensor) -> Tensor:
    """Return the message: for each atom whose draw is below its probability, its size divided by that, and both
    vectors."""
    kept = keep_probabilities(sizes, budget)
    picked = torch.nonzero(draws < kept).view(-1)
    scaled = (sizes[picked] / kept[picked]).float()
    return pack(torch.cat([scaled.unsqueeze(1), u.T[picked], v[picked]], dim=1))


def matrix_sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the sides of a tensor's matrix; a convolution's (a, b, h, w) become (a·b/2) x (2·h·w) where that
    divides."""
    if len(shape) == 4 and shape[0] * shape[1] % 2 == 0:
        return shape[0] * shape[1] // 2, 2 * shape[2] * shape[3]
    return shape[0], torch.Size(shape[1:]).numel()
