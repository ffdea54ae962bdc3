"""ACP-SGD: low-rank compression that exchanges one factor a step, so that no message waits for another's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Exchange, Outcome, State
from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket
from laconic.compression.low_rank import PowerSGD, first_draw, orthogonal, sides
from laconic.registry import knob, named_sentence, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets

_TURNS = "turns of alternating factors"


@technique(
    "alternating",
    paper="Zhang, Zhang, Shi, Chu, Li, ICDCS 2023",
    formula="P = mean(M·Q) with Q orthonormal, in the next step Q = mean(M'·P) with P orthonormal; result P·Q'",
    worth_trying=["alternating(4)+ef"],
)
@dataclass(frozen=True)
class Alternating(PowerSGD):
    """Two thin factors of the gradient's matrix, of which one is sent in each step, alternating between them.

    In even steps Q is made orthonormal and P becomes M·Q, in odd steps P is made orthonormal and Q becomes M'·P: one
    all-reduce a step, half of power_sgd's bytes in the mean. What a worker sent is its own factor times the common one,
    so that alternating+ef keeps each worker's own errors. Vectors are sent dense. Where a factor is not finite the
    result is not finite, and the old factor is kept.
    """

    ragged: ClassVar[bool] = True
    """The length of a message depends on which factor is sent in the step."""
    rank: int = knob(4, low=1, gentler="more", doc="columns of the factors")

    @property
    def decoded_with_memory(self) -> bool:
        return True

    def init(self, spec: TensorSpec) -> State:
        draw, r = first_draw(spec), min(self.rank, *sides(spec.shape))
        p, q = (torch.randn(side, r, generator=draw).to(torch.empty(0).device) for side in sides(spec.shape))
        return {"p": p, "q": q, "turn": torch.zeros((), dtype=torch.int64)}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        matrix = x.reshape(len(x), -1).float()
        first = int(state["turn"]) % 2 == 0
        still, moving, times = ("q", "p", kernels.left_products) if first else ("p", "q", kernels.right_products)
        basis = orthogonal(state[still])
        (own,) = times([matrix], [basis])
        mean = yield meet.mean(own.clone())
        products = [(f @ basis.T if first else basis @ f.T).view(x.shape).to(x.dtype) for f in (mean, own)]
        found = (mean != 0).any(dim=0) & mean.isfinite().all(dim=0)  # a column that becomes zero would stay zero
        kept = {still: torch.where((basis != 0).any(dim=0), basis, state[still])}
        kept[moving] = torch.where(found, mean, state[moving])
        return Outcome(products[0], {**kept, "turn": state["turn"] + 1}, products[1])

    def exchange_bucket(self, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
        return self._bucket(bucket, None, meet)

    def exchange_rest(self, bucket: TensorBucket, rest: Tensor, meet: BucketMeet) -> BucketExchange | None:
        return self._bucket(bucket, rest, meet)

    def _bucket(self, bucket: TensorBucket, rest: Tensor | None, meet: BucketMeet) -> BucketExchange | None:
        turns = bucket.fact(_TURNS, lambda: {int(turn) % 2 for turn in bucket.lists["turn"]})  # waits once for a GPU
        if bucket.flat.dtype != torch.float32 or len(turns) > 1:
            return None
        return self._alternate(bucket, rest, meet, turns == {0})

    def _alternate(self, bucket: TensorBucket, rest: Tensor | None, meet: BucketMeet, first: bool) -> BucketExchange:
        still, moving, times = ("q", "p", kernels.left_products) if first else ("p", "q", kernels.right_products)
        results = bucket.matrices(bucket.flat)
        matrices = results if rest is None else bucket.matrices(rest)
        basis = kernels.orthogonalised(bucket.lists[still])
        own = times(matrices, basis)
        apart = meet.own or rest is not None  # whether the own factor is needed beside the mean
        mean = own.like((yield meet.mean(own.flat.clone() if apart else own.flat)))

        def multiply(factor: kernels.Packed, out: Sequence[Tensor] | None, rests: Sequence[Tensor] | None) -> None:
            kernels.outer_products(*((factor, basis) if first else (basis, factor)), out, rests)

        sent = torch.empty_like(bucket.flat) if meet.own else None
        if rest is not None:
            multiply(own, None, matrices)
        if sent is not None:
            multiply(own, [x.view(y.shape) for x, y in zip(bucket.parts(sent), results, strict=True)], None)
        multiply(mean, results, None)
        kernels.replace_columns(bucket.lists[still], basis)
        kernels.replace_columns(bucket.lists[moving], mean)
        torch._foreach_add_(list(bucket.lists["turn"]), 1)
        bucket.facts[_TURNS] = {int(first)}
        return sent

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the bytes of the longer factor."""
        return 4 * min(self.rank, *sides(spec.shape)) * max(sides(spec.shape))

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        return (("reduce", self.payload_bytes(spec, size)),)


named_sentence(
    "acp_sgd",
    "bsp / alternating(4)+error_feedback / allreduce",
    axis="compression",
    paper="Zhang, Zhang, Shi, Chu, Li, ICDCS 2023",
    doc="""PowerSGD with one factor a step and each worker's own errors: one all-reduce that backward can hide.

    Reading chosen: the order of the factors of the published program.
    """,
    formula="M = G + E; P = M·Q, next step Q = M'·P, the other factor orthonormal; E ← M - own P·Q', result P·Q'",
)
