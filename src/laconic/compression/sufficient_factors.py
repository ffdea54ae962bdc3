"""Sufficient factors: the gradient of a fully connected layer as the pairs of vectors whose products it is the sum
of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.payload import pack, unpack
from laconic.registry import knob, named_sentence, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Gather, GatherRagged, Meet, Meets, Reduce

_PAPER = "Zhang et al. (Poseidon), USENIX ATC 2017; Xie et al. (sufficient factor broadcasting), UAI 2016"
_NEAR = 1e-4  # relative distance up to which the factors' product counts as the gradient


def served_values(rows: int, columns: int, workers: int, servers: int) -> float:
    """Return how many values a host that is a worker and a server sends and receives for a dense gradient."""
    return 2 * rows * columns * (workers + servers - 2) / servers


def factor_values(rows: int, columns: int, batch: int, workers: int) -> float:
    """Return how many values a worker sends and receives if every worker sends its pairs to every other."""
    return 2 * batch * (workers - 1) * (rows + columns)


@technique("sufficient_factors", aliases=["sfb"], paper=_PAPER, formula="C(x) = x = Σ_k v_k·u_kᵀ, sent as the pairs")
@dataclass(frozen=True)
class SufficientFactors(Compressor):
    """A linear layer's gradient as pairs of input and output gradient, sent where that takes fewer bytes.

    The gradient is the product of the output's gradients and the inputs, a pair for each sample; all workers receive
    all pairs and rebuild the sum exactly. Where pairs would take more bytes than a server, the gradient itself is sent.
    The rule is the same on every worker: 2K(P1-1)(M+N) ≤ 2MN(P1+P2-2)/P2 for an M x N layer, P1 workers, P2 servers and
    K = `batch`; a batch of another size is as exact. Rows of a sequence are samples. Where pairs do not make up the
    gradient (compiled, in mixed precision) it is sent in as many pairs as it has rows or columns; when all together are
    then larger than gradients, gradients are sent from the next step on. Weights that are shared between layers are
    sent dense. Reading chosen: at equal bytes factors are sent; there is a server with each worker unless `servers`
    gives another number.
    """

    takes_factors: ClassVar[bool] = True
    ragged: ClassVar[bool] = True
    cost: ClassVar[str] = "matmul"
    batch: int = knob(64, low=1, doc="K: pairs that a worker expects to send in a step")
    servers: int = knob(
        0, low=0, doc="P2: servers among which a dense gradient would be divided; 0: as many as workers"
    )

    @property
    def meets(self) -> Meets:
        return "gather"

    @property
    def asks(self) -> tuple[type, ...]:
        return (Reduce, Gather, GatherRagged)

    @property
    def refuses_memory(self) -> str | None:
        return "it leaves nothing out that could be remembered; write sufficient_factors"

    def accepts(self, spec: TensorSpec) -> bool:
        return spec.dtype == torch.float32 and len(spec.shape) == 2 and spec.role == "matrix" and spec.numel > 0

    def pays(self, shape: tuple[int, ...], size: int) -> bool:
        """Tell whether the factors of such a layer take no more bytes than its gradient."""
        if len(shape) != 2 or size == 1:
            return False
        return factor_values(*shape, self.batch, size) <= served_values(*shape, size, self.servers or size)

    def init(self, spec: TensorSpec) -> State:
        return {"dense": torch.zeros((), dtype=torch.bool)}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        pairs = meet.factors()
        if pairs is None or bool(state["dense"]) or not self.pays(tuple(x.shape), meet.size):
            own = x.clone()
            return Outcome((yield meet.mean(x)), state, sent=own)
        u, v, own = proven(*pairs, x)
        rows = yield meet.gather_ragged(pack(u, v))
        m, n = x.shape
        pairs_received = [_read(row, m, n) for row in rows]
        mean = torch.cat([v for _, v in pairs_received]).T @ torch.cat([u for u, _ in pairs_received])
        larger = sum(len(u) for u, _ in pairs_received) * (m + n) > len(rows) * m * n
        return Outcome(mean.div_(len(rows)), {"dense": torch.tensor(larger)}, own)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 4 * self.batch * sum(spec.shape) if self.pays(spec.shape, size) else spec.nbytes

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        return (("gather" if self.pays(spec.shape, size) else "reduce", self.payload_bytes(spec, size)),)


def proven(u: Tensor, v: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, output gradients and their product if that equals this gradient; otherwise a factorisation that
    does."""
    product = v.T @ u
    if float((product - gradient).norm()) <= _NEAR * float(gradient.norm()):
        return u, v, product
    identity = torch.eye(min(gradient.shape), device=gradient.device)
    u, v = (gradient, identity) if len(gradient) <= len(gradient.T) else (identity, gradient.T)
    return u, v, gradient.clone()


def _read(payload: Tensor, m: int, n: int) -> tuple[Tensor, Tensor]:
    count = payload.numel() // (4 * (m + n))
    u, v = unpack(payload, (torch.float32, count * n), (torch.float32, count * m))
    return u.view(count, n), v.view(count, m)


named_sentence(
    "poseidon",
    "bsp / sufficient_factors / allreduce(order=rank) / wfbp(bucket_bytes=0)",
    axis="compression",
    paper="Zhang et al., USENIX ATC 2017",
    doc="""Every layer is sent as soon as its gradient is ready, as factors or dense, whichever takes fewer bytes.

    Pairs of a fully connected layer go to all peers; everything else goes to the worker that adds up that part of the
    model and sends the result to all. Such owners are servers on every worker's host, with its bytes. Reading chosen:
    parts of a tensor are cut evenly, not in pieces of 2 MB, and at equal bytes factors are sent. For servers elsewhere
    write a map: {"fc.weight": bsp / sufficient_factors(servers=2) / allreduce, else: bsp / none / ps(shards=2)}.
    """,
    formula="C(x) = Σ_k v_k·u_kᵀ where 2K(P1-1)(M+N) ≤ 2MN(P1+P2-2)/P2, else x",
)
