"""A compression ratio that changes with the iterations: by a list, by the energy lost, or by the training loss
gained."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.optional import prices_of, spread_of
from laconic.compression.ratio_schedules import ratio_holder, with_share
from laconic.compression.wrapper import StatefulWrapper, Wrapping, inner_of, within
from laconic.errors import ContractError
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Gather, GatherRagged, Meet, Meets, Reduce, Request

DGC = (0.25, 0.0625, 0.015625, 0.004, 0.001)


@technique(
    "iteration_ratio",
    paper="Shi et al., IEEE Network 2020 (a direction of their survey)",
    formula="C of ratio ρ_t: the t-th of a list, or ρ·2 and ρ/2 where what C loses is above and below its bounds",
)
@dataclass(frozen=True)
class IterationRatio(Wrapping):
    """Change the share of coordinates sent during training, by a list, by lost energy or by progress of the loss.

    The word `iteration_ratio` wraps what stands before it, as in topk(0.01)+iteration_ratio+ef. by=list takes the next
    of `shares` every `steps` steps. by=energy begins with the compressor's own share and looks at |x - C(x)|²/|x|² in
    the mean of `steps` steps: above `high` the share doubles, below `low` it halves. by=progress doubles it where the
    loss (`laconic.log(loss=…)`) fell less per byte than in the mean of all times before. Each worker appends what it
    measured, one float, to its next message, and the mean over workers decides for all. Reading chosen: the mean over
    workers in place of rank 0's own.
    """

    by: str = knob("energy", choices=("list", "energy", "progress"), doc="what the share follows")
    steps: int = knob(10, low=1, doc="steps for which a share is kept")
    shares: tuple[float, ...] = knob(DGC, doc="the list of shares for by=list; the last one is kept for ever")
    low: float = knob(0.5, low=0, high=1, doc="share of the energy lost below which less is sent")
    high: float = knob(0.9, low=0, high=1, doc="share of the energy lost above which more is sent")
    least: float = knob(0.001, above=0, high=1, doc="the smallest share, below which it does not fall")

    def objects(self, inner: Compressor) -> str | None:
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            return f"{self.shares} are not shares; write numbers above 0 and at most 1, as [0.25, 0.01]"
        if not hasattr(ratio_holder(inner), "ratio"):
            return "there is no share to change; write topk+iteration_ratio"
        return None if self.low <= self.high else f"low={self.low} is above high={self.high}"

    def around(self, inner: Compressor) -> Compressor:
        return ListedRatio(inner, self) if self.by == "list" else MeasuredRatio(inner, self)

    def listed(self, step: int) -> float:
        """Return the share that the list gives for this step."""
        return self.shares[min(step // self.steps, len(self.shares) - 1)]


@dataclass(frozen=True)
class ListedRatio(StatefulWrapper):
    """A compressor whose share follows a list: a function of the step, equal on every worker without communication."""

    how: IterationRatio = field(default_factory=IterationRatio)

    def begin(self, spec: TensorSpec) -> State:
        return {}

    @property
    def settling(self) -> int:
        return self.how.steps * (len(self.how.shares) - 1)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        outcome = yield from with_share(self.inner, self.how.listed(meet.step)).exchange(x, inner_of(state), meet)
        return Outcome(outcome.result, within(outcome.state), outcome.sent)

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        return prices_of(with_share(self.inner, self.how.shares[-1]), spec, size)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return with_share(self.inner, self.how.shares[-1]).payload_bytes(spec, size)

    def spread(self, spec: TensorSpec) -> float:
        return spread_of(self.inner, spec)


@dataclass(frozen=True)
class MeasuredRatio(StatefulWrapper):
    """A compressor whose share follows what the workers measured of lost energy or of the loss.

    Its price is that of the compressor's own share.
    """

    how: IterationRatio = field(default_factory=IterationRatio)

    @property
    def asks(self) -> tuple[type, ...]:
        return (Reduce, *self.inner.asks)

    def begin(self, spec: TensorSpec) -> State:
        own = ratio_holder(self.inner).ratio
        return {
            "share": torch.tensor(own, dtype=torch.float64),
            "told": torch.tensor([math.nan]),  # the measurement that is appended to the next message
            "window": torch.zeros(3, dtype=torch.float64),  # of the means received: sum, count, steps
            "before": torch.tensor([math.nan, 0.0, 0.0], dtype=torch.float64),  # last loss; sum and count of its falls
        }

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        share, wanted = float(state["share"]), x.clone()
        inner_exchange = with_share(self.inner, share).exchange(x, inner_of(state), meet)
        if self.how.by == "progress":
            loss = meet.logged("loss")
            state["told"].fill_(math.nan if loss is None else loss)
        outcome, received = yield from with_appended_float(inner_exchange, state["told"], meet)
        own = outcome.result if outcome.sent is None else outcome.sent
        if self.how.by == "energy":
            state["told"].fill_((wanted - own.view_as(wanted)).float().square().sum() / wanted.float().square().sum())
        kept = {key: state[key] for key in ("told", "window", "before")}
        kept["share"] = torch.tensor(self.next(share, received, kept), dtype=torch.float64)
        return Outcome(outcome.result, {**kept, **within(outcome.state)}, own)

    def next(self, share: float, received: float, state: State) -> float:
        """Return the share of the next step from the mean that all workers received in this one, which is equal on all.

        A mean that is not finite counts as no measurement.
        """
        window = state["window"]
        seen = [received, 1.0, 1.0] if math.isfinite(received) else [0.0, 0.0, 1.0]
        window += torch.tensor(seen, dtype=torch.float64, device=window.device)
        total, count, steps = window.tolist()
        if steps < self.how.steps:
            return share
        window.zero_()
        if not count:
            if self.how.by == "progress":
                raise ContractError(
                    f"iteration_ratio(by=progress) decides by the training loss, and in {self.how.steps} steps not all "
                    "workers have logged one: call laconic.log(loss=loss) in the training loop, or write by=energy"
                )
            return share
        if self.how.by == "energy":
            factor = 2.0 if total / count > self.how.high else 0.5 if total / count < self.how.low else 1.0
        else:
            factor = _gained(total / count, share * self.how.steps, state["before"])
        return min(1.0, max(self.how.least, factor * share)) if factor != 1.0 else share

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        (meets, nbytes), *others = prices_of(self.inner, spec, size)
        return (meets, nbytes + 4), *others

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return self.inner.payload_bytes(spec, size) + 4

    def spread(self, spec: TensorSpec) -> float:
        return spread_of(self.inner, spec)


def _gained(loss: float, spent: float, before: Tensor) -> float:
    """Return the factor for the share when the loss fell like this for so many bytes, and record the fall in
    `before`."""
    last, total, count = before.tolist()
    fell = (last - loss) / spent
    if not math.isfinite(fell):
        before[0] = loss
        return 1.0
    before.copy_(torch.tensor([loss, total + fell, count + 1], dtype=torch.float64))
    return 2.0 if count and fell < total / count else 1.0


def with_appended_float(
    exchange: Exchange, measured: Tensor, meet: Meet
) -> Generator[Request, Any, tuple[Outcome, float]]:
    """Run an exchange with one float32 of each worker appended to its first message; return its outcome and the mean.

    The float is appended to gathered payloads of bytes or to float32 sums; where the exchange makes no such request, it
    is sent in a message of its own.
    """
    received: Tensor | None = None
    answer: Any = None
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration as end:
            if received is None:
                received = yield meet.mean(measured.clone())
            return end.value, float(received)
        x = request.tensor
        sums = isinstance(request, Reduce) and request.op != "max" and x.dtype == torch.float32
        gathers = isinstance(request, Gather | GatherRagged) and x.dtype == torch.uint8
        if received is not None or not (sums or gathers):
            answer = yield request
        elif isinstance(request, Reduce):
            joined = yield replace(request, tensor=torch.cat([x.reshape(-1), measured]))
            answer, received = joined[:-1].view(x.shape), joined[-1] / (meet.size if request.op == "sum" else 1)
        else:
            joined = yield replace(request, tensor=torch.cat([x.reshape(-1), measured.view(torch.uint8)]))
            received = torch.stack([row[-4:].clone().view(torch.float32) for row in joined]).mean()
            rows = [row[:-4] for row in joined]
            answer = rows if isinstance(request, GatherRagged) else torch.stack(rows).view(len(rows), *x.shape)
