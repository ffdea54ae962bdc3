"""Techniques that declare something else than they do, one lie each, beside one that tells the truth."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laconic.extend import Codec, Compressor, Exchange, Meet, Outcome, Schedule, State, Sync, TensorSpec, uniform
from laconic.schedule.wfbp import WFBP
from laconic.sync.local import LocalSGD
from laconic.values.cadence import Cadence, Stretch
from laconic.values.comm_plan import CommPlan


@dataclass(frozen=True)
class Honest(Codec):
    """The sign of every entry in a byte, and one scale: the mean magnitude."""

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        signs = x.sign().to(torch.int8).view(-1)
        return torch.cat([signs.view(torch.uint8), x.abs().mean().view(1).view(torch.uint8)])

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        signs, scale = payload[:-4].view(torch.int8), payload[-4:].clone().view(torch.float32)
        return (signs.float() * scale).view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return spec.numel + 4


@dataclass(frozen=True)
class ScaleNotSent(Compressor):
    """Every worker multiplies the others' signs by its own scale."""

    meets = "gather"

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        signs, scale = x.sign().to(torch.int8), x.abs().mean()
        rows = yield meet.gather(signs)
        return Outcome((rows.float().mean(0) * scale).to(x.dtype), state, sent=(signs * scale).to(x.dtype))

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return spec.numel


@dataclass(frozen=True)
class SentTooLarge(Honest):
    """What it says it sent is twice what the others decode."""

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        outcome = yield from super().exchange(x, state, meet)
        assert outcome.sent is not None
        return Outcome(outcome.result, outcome.state, 2 * outcome.sent)


@dataclass(frozen=True)
class MemoryNotUpdated(Honest):
    """An error memory that stays at zero."""

    conserved = ("error",)
    refuses_memory = "it has a memory of its own"

    def init(self, spec: TensorSpec) -> State:
        return {"error": torch.zeros(spec.shape, dtype=spec.dtype)}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        outcome = yield from super().exchange(x + state["error"], state, meet)
        return Outcome(outcome.result, state)


@dataclass(frozen=True)
class WrongMeets(ScaleNotSent):
    """It says that its messages are summed, and gathers them."""

    meets = "reduce"

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        rows = yield meet.gather(x)
        return Outcome(rows.mean(0), state)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return spec.nbytes


@dataclass(frozen=True)
class Rounded(Codec):
    """Whole multiples of a tenth, rounded down and called unbiased."""

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        return (10 * x).floor().clamp(-(2**15), 2**15 - 1).to(torch.int16).view(-1).view(torch.uint8)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        return (payload.clone().view(torch.int16).float() / 10).view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 2 * spec.numel

    def variance(self, spec: TensorSpec) -> float | None:
        return 100.0


@dataclass(frozen=True)
class VarianceTooSmall(Codec):
    """Random ternary values, unbiased, with a hundredth of their variance declared."""

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        largest = x.abs().max()
        kept = uniform(meet.key(), 0, x.numel()).view(x.shape) * largest < x.abs()
        signs = (x.sign() * kept).to(torch.int8).view(-1)
        return torch.cat([signs.view(torch.uint8), largest.view(1).view(torch.uint8)])

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        signs, scale = payload[:-4].view(torch.int8), payload[-4:].clone().view(torch.float32)
        return (signs.float() * scale).view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return spec.numel + 4

    def variance(self, spec: TensorSpec) -> float | None:
        return spec.numel**0.5 / 100


@dataclass(frozen=True)
class ContractionTooLarge(Honest):
    """A δ that signs do not have for values of different sizes."""

    def contraction(self, spec: TensorSpec) -> float | None:
        return 0.95


@dataclass(frozen=True)
class TooFewBytes(Honest):
    """The scale is sent and not counted."""

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return spec.numel


@dataclass(frozen=True)
class PricesDoNotAddUp(Honest):
    """Messages that cost less together than `payload_bytes`."""

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[str, int], ...]:
        return (("gather", spec.numel),)


_hidden: dict[int, Tensor] = {}


@dataclass(frozen=True)
class HiddenMemory(Honest):
    """Its memory stands outside the state, where no checkpoint finds it."""

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        before = _hidden.get(meet.rank)
        wanted = x if before is None or before.shape != x.shape or before.dtype != x.dtype else x + before
        outcome = yield from super().exchange(wanted, state, meet)
        assert outcome.sent is not None
        _hidden[meet.rank] = wanted - outcome.sent
        return outcome


@dataclass(frozen=True)
class OwnDraws(Compressor):
    """Workers leave out coordinates at random, each others, and sum what is left as if they were the same."""

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        kept = (uniform(meet.key(), 0, x.numel()).view(x.shape) < 0.5).to(x.dtype)
        mean = yield meet.mean(x * kept)
        return Outcome(mean * kept, state)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return spec.nbytes


@dataclass(frozen=True)
class OddSizes(Honest):
    """Two entries at a time, whether there are two or not."""

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        return super().encode(x.reshape(-1, 2), meet)


@dataclass(frozen=True)
class StateChangesShape(Honest):
    """A memory that has another shape than it had at the start."""

    def init(self, spec: TensorSpec) -> State:
        return {"last": torch.zeros(1)}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        outcome = yield from super().exchange(x, state, meet)
        return Outcome(outcome.result, {"last": x.float()}, outcome.sent)


@dataclass(frozen=True)
class ReplicasDrift(Sync):
    """Workers step by themselves, and the rule does not say that their models differ."""

    def after_step(self, context: Any, state: State) -> Generator[Any, Any, State]:
        return state
        yield


@dataclass(frozen=True)
class ForgetsItsSteps(Sync):
    """It counts its steps in the process, not in its state, so that a resumed run averages at other times."""

    replicas_differ = True

    def after_step(self, context: Any, state: State) -> Generator[Any, Any, State]:
        counted = _hidden.setdefault(id(context.parameters[0]), torch.zeros(()))
        counted += 1
        if int(counted) % 3 == 0:
            means = yield from context.average([p.detach().clone() for p in context.parameters], exact=True)
            for parameter, mean in zip(context.parameters, means, strict=True):
                parameter.data.copy_(mean)
        return state


@dataclass(frozen=True)
class ExchangesMoreOften(LocalSGD):
    """It averages in every second step, and declares to do so ever more rarely."""

    period: int = 2

    @property
    def cadence(self) -> None:
        return None

    def stretches(self, steps: int | None) -> Sequence[Stretch]:
        return Stretch(Cadence(2, overlaps=False), 0.25), Stretch(Cadence(16, overlaps=False), 0.75)


@dataclass(frozen=True)
class LosesTensors(Schedule):
    """A plan of all tensors but the last one."""

    def plan(self, tensors: Any, arrival: Any, timing: Any = None) -> CommPlan:
        short = len(tensors) - 1
        return WFBP().plan(tensors[:short], [i for i in arrival if i < short])
