"""Small techniques for tests: each is one class in one place, which is all that adding a technique takes."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from laconic import registry
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.registry import knob, technique
from laconic.sync.base import Sync, SyncContext
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


def register() -> None:
    """Register the toys once in this process."""
    if "toy_topk" in {entry.name for entry in registry.entries()}:
        return

    @technique("toy_topk", paper="a test's own")
    @dataclass(frozen=True)
    class ToyTopK(Compressor):
        """Send the largest entries as (index, value), in ragged gathers."""

        ratio: float = knob(0.1, above=0, high=1)
        meets: ClassVar[Literal["reduce", "gather"]] = "gather"

        def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
            flat = x.reshape(-1)
            index = flat.abs().topk(max(1, int(self.ratio * flat.numel()))).indices
            values = yield meet.gather_ragged(flat[index])
            indices = yield meet.gather_ragged(index)
            result = torch.zeros_like(flat)
            for i, v in zip(indices, values, strict=True):
                result.index_add_(0, i, v / meet.size)
            own = torch.zeros_like(flat)
            own[index] = flat[index]
            return Outcome(result.view_as(x), state, sent=own.view_as(x))

        def payload_bytes(self, spec: TensorSpec, size: int) -> int:
            return max(1, int(self.ratio * spec.numel)) * (spec.dtype.itemsize + 8)

    @technique("toy_power", paper="a test's own, after Vogels et al., NeurIPS 2019")
    @dataclass(frozen=True)
    class ToyPower(Compressor):
        """Send two factors in two dependent rounds, with a warm start."""

        rank: int = knob(2, low=1)

        def accepts(self, spec: TensorSpec) -> bool:
            return len(spec.shape) == 2

        def init(self, spec: TensorSpec) -> State:
            draw = torch.Generator().manual_seed(spec.numel)
            return {"q": torch.randn(spec.shape[1], min(self.rank, *spec.shape), generator=draw).to(spec.dtype)}

        def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
            p = torch.linalg.qr((yield meet.mean(x @ state["q"])).contiguous()).Q
            q = yield meet.mean(x.t() @ p)
            return Outcome(p @ q.t(), {"q": q})

        def payload_bytes(self, spec: TensorSpec, size: int) -> int:
            return spec.dtype.itemsize * min(self.rank, *spec.shape) * sum(spec.shape)

    @technique("toy_local", paper="a test's own, after Stich, ICLR 2019")
    @dataclass(frozen=True)
    class ToyLocal(Sync):
        """Average parameters every `period` steps."""

        period: int = knob(4, low=1)
        late: ClassVar[bool] = True
        replicas_differ: ClassVar[bool] = True

        def after_step(self, section: SyncContext, state: State) -> Generator[Any, Any, State]:
            if (section.step + 1) % self.period == 0:
                means = yield from section.average([p.detach().clone() for p in section.parameters])
                with torch.no_grad():
                    for p, mean in zip(section.parameters, means, strict=True):
                        p.copy_(mean)
            return state
