"""Low rank: two thin factors of a gradient's matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket
from laconic.kernels.draws import key_of
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets


@technique(
    "power_sgd",
    aliases=["powersgd"],
    paper="Vogels, Karimireddy, Jaggi, NeurIPS 2019",
    evidence="fixture",
    reproduces="power_sgd.npz: means and memories, one and two workers, as `power_sgd(1)+ef` and `power_sgd(2)+ef`",
    formula="P = orth(mean M·Q), Q ← mean M'·P, result P·Q'",
    worth_trying=["power_sgd(rank=1)+ef", "power_sgd(rank=2)+ef", "power_sgd(rank=4)+ef"],
)
@dataclass(frozen=True)
class PowerSGD(Compressor):
    """Two thin factors of the gradient's matrix, by one step of power iteration from the last step's factor.

    Linear: the result is what one worker would send of the mean. Its error is what the common result leaves out, so
    that it needs error feedback (power_sgd+ef). Vectors, and matrices that factors would not make smaller, are sent
    dense. Reading chosen: the paper's own program, a full iteration a step and the error of the averaged result.
    """

    cost: ClassVar[str] = "matmul"
    rank: int = knob(2, low=1, gentler="more", doc="columns of the factors")

    def accepts(self, spec: TensorSpec) -> bool:
        if len(spec.shape) < 2 or not spec.dtype.is_floating_point or not spec.numel:
            return False
        rows, columns = sides(spec.shape)
        return self.rank * (rows + columns) < rows * columns

    def init(self, spec: TensorSpec) -> State:
        rows, columns = sides(spec.shape)
        first = torch.randn(columns, min(self.rank, rows, columns), generator=first_draw(spec))
        return {"q": first.to(torch.empty(0).device)}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        matrix = x.reshape(len(x), -1).float()
        p = orthogonal((yield meet.mean(kernels.left_products([matrix], [state["q"]])[0])))
        q = yield meet.mean(kernels.right_products([matrix], [p])[0])
        found = (q != 0).any(dim=0) & q.isfinite().all(dim=0)  # a column that becomes zero would stay zero
        return Outcome((p @ q.T).view(x.shape).to(x.dtype), {"q": torch.where(found, q, state["q"])})

    def exchange_bucket(self, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
        return self._exchange_bucket(bucket, None, meet) if bucket.flat.dtype == torch.float32 else None

    def exchange_rest(self, bucket: TensorBucket, rest: Tensor, meet: BucketMeet) -> BucketExchange | None:
        return self._exchange_bucket(bucket, rest, meet) if bucket.flat.dtype == torch.float32 else None

    def _exchange_bucket(self, bucket: TensorBucket, rest: Tensor | None, meet: BucketMeet) -> BucketExchange:
        results, before = bucket.matrices(bucket.flat), bucket.lists["q"]
        matrices = results if rest is None else bucket.matrices(rest)
        ps = kernels.left_products(matrices, before)
        ps = kernels.orthogonalised(ps.like((yield meet.mean(ps.flat))))
        qs = kernels.right_products(matrices, ps)
        qs = qs.like((yield meet.mean(qs.flat)))
        kernels.outer_products(ps, qs, results, None if rest is None else matrices)
        kernels.replace_columns(before, qs)
        return None

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        rows, columns = sides(spec.shape)
        return 4 * min(self.rank, rows, columns) * (rows + columns)

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        """Return the two factors, the second of which is made of the first one's mean."""
        rows, columns = sides(spec.shape)
        rank = min(self.rank, rows, columns)
        return ("reduce", 4 * rank * rows), ("reduce", 4 * rank * columns)


def sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the sides of a tensor that is seen as a matrix: its first dimension, and all others."""
    return shape[0], torch.Size(shape[1:]).numel()


def first_draw(spec: TensorSpec) -> torch.Generator:
    """Return the generator of a tensor's first factors, which depends on its name and shape alone and is equal on all
    workers."""
    return torch.Generator().manual_seed(key_of(f"{spec.name} {spec.shape}") >> 1)


def orthogonal(matrix: Tensor) -> Tensor:
    """Return the columns made orthonormal, from the first on; a column that is only rounding noise becomes zero."""
    return kernels.orthogonalised([matrix])[0]
