"""Deep gradient compression: momentum is applied at the workers before selection, and masked with what was sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.codes import runs
from laconic.compression.payload import pack
from laconic.compression.selector import sample, share_of
from laconic.compression.thresholds import passing
from laconic.compression.topk import largest
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets

_SAMPLE, EXACT = 0.01, 1 << 16
_STAGES = 4  # stages of the warm-up: a quarter, a sixteenth, …


@technique(
    "dgc",
    paper="Lin, Han, Mao, Wang, Dally, ICLR 2018",
    holds="the warm-up's sparsities 75, 93.75, 98.4375, 99.6 and 99.9 %",
    formula="u ← m·u + g, v ← v + u; send the k largest of |v|, there v ← 0 and u ← 0",
)
@dataclass(frozen=True)
class DGC(Compressor):
    """The largest values of locally accumulated momentum; what is sent is cleared from the velocity and the sum.

    The optimizer's own momentum is applied here instead, in its plain form (an optimizer without momentum has none to
    move); local gradients are cut to a norm of `clip`/√N, tensor by tensor; during `warmup` steps the share falls from
    a quarter by quarters to `ratio`. The threshold is estimated on a sample of large tensors, and selection is repeated
    where too many values pass. Places are 16-bit gaps. Reading chosen: a gap above 65,535 takes filler entries of value
    zero. Values that are not finite are sent, and then forgotten.
    """

    cost: ClassVar[str] = "select"
    takes: ClassVar[tuple[str, ...]] = ("momentum",)
    ratio: float = knob(
        0.001, above=0, high=1, gentler="more", doc="share of the coordinates that are sent, at least one"
    )
    clip: float = knob(0.0, low=0, doc="norm to which a worker's gradient is cut, divided by the root of N; 0: never")
    masking: bool = knob(True, doc="whether the velocity of the coordinates that were sent is set to zero")
    warmup: int = knob(0, low=0, doc="steps during which the share falls from a quarter")

    @property
    def meets(self) -> Meets:
        return "gather"

    @property
    def conserved(self) -> tuple[str, ...]:
        return "velocity", "sum"

    @property
    def refuses_memory(self) -> str | None:
        return "it has a memory of its own; write dgc"

    def accepts(self, spec: TensorSpec) -> bool:
        return spec.dtype.is_floating_point and spec.numel > 1

    def init(self, spec: TensorSpec) -> State:
        return {"velocity": torch.zeros(spec.shape), "sum": torch.zeros(spec.shape)}

    def share(self, step: int) -> float:
        """Return the share of the coordinates that is sent in this step."""
        if step >= self.warmup:
            return self.ratio
        return max(self.ratio, 0.25 ** (1 + _STAGES * step // self.warmup))

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        velocity, total = state["velocity"], state["sum"]
        gradient = _cut(x.float(), self.clip / math.sqrt(meet.size))
        velocity.mul_(meet.settings.get("momentum", 0.0)).add_(gradient)
        total.add_(velocity)
        places, values = self.to_send(total.view(-1), state, meet)
        total.view(-1)[places] -= values
        if self.masking:
            velocity.view(-1)[places] = 0
        for memory in (total, velocity):
            memory.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        rows = yield meet.gather_ragged(self.write(places, values))
        result, sent = torch.zeros(2, x.numel(), device=x.device)
        for row in rows:
            result.index_add_(0, *self.read(row))
        sent[places] = values
        result /= len(rows)
        return Outcome(result.view(x.shape).to(x.dtype), state, sent.view(x.shape).to(x.dtype))

    def to_send(self, flat: Tensor, state: State, meet: Meet) -> tuple[Tensor, Tensor]:
        """Return the places that are selected from the accumulated sum, and the values that are sent for them."""
        places = self.choose(flat, meet)
        return places, flat[places]

    def write(self, places: Tensor, values: Tensor) -> Tensor:
        """Encode places and values as bytes."""
        return pack(*runs.gaps(places, values))

    def read(self, payload: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places and values of a payload."""
        return runs.read(payload)

    def choose(self, flat: Tensor, meet: Meet) -> Tensor:
        """Return the selected places of a flat tensor."""
        n = flat.numel()
        k = share_of(self.share(meet.step), n)
        if n <= EXACT:
            return largest(flat, k)
        places = passing(flat, sampled(flat, k, meet))
        return places if len(places) <= 1.3 * k else places[largest(flat[places], k)]

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the bytes after the warm-up, if no gap is long and the threshold's estimate is right."""
        return runs.EACH * share_of(self.ratio, spec.numel)


def sampled(flat: Tensor, k: int, meet: Meet) -> float:
    """Return an estimate of the k-th largest magnitude, from a hundredth of the values."""
    looked = sample(flat, max(1000, int(_SAMPLE * flat.numel())), meet.key("sample"))
    wanted = max(1, round(looked.numel() * k / flat.numel()))
    return float(looked.abs().topk(wanted).values[-1])


def _cut(gradient: Tensor, limit: float) -> Tensor:
    norm = float(gradient.norm())
    return gradient * (limit / norm) if limit and math.isfinite(norm) and norm > limit else gradient
